"""More memory than there is, and memory that is held for nothing."""

import msgspec
import torch

from faults.lab import PROTOCOL, Lab
from faults.records import Fault, Seen
from peakward.models.presets import model
from peakward.records.case import Configuration, ModelCase, Workload

GIB = 2**30
BRIEF = msgspec.structs.replace(PROTOCOL, warmup_steps=1, min_steps=2, max_steps=2)


def _case(lab: Lab, batch_size: int, limit_bytes: float, **settings: str) -> ModelCase:
    size, length = ("small", 1024) if lab.device == "cuda" else ("tiny:L2", 256)
    shape = model(size.partition(":")[0])
    if lab.device == "cpu":
        shape = msgspec.structs.replace(shape, name=size, n_layers=2, vocab_size=1000)
    return ModelCase(
        model=shape,
        workload=Workload(batch_size=batch_size, seq_len=length),
        configuration=Configuration(optimizer="adamw-fused", **settings),
        device=lab.device,
        memory_limit_bytes=int(limit_bytes),
    )


def _too_much(lab: Lab, n_times: float) -> Seen:
    """Of a batch that fits, so many times as large a one, under the same limit."""
    fits = 4 if lab.device == "cuda" else 1
    limit_bytes = (16 if lab.device == "cuda" else 0.5) * GIB
    case = _case(lab, int(fits * max(n_times, 1)), limit_bytes)
    seen = lab.case(case, protocol=BRIEF, profiled=False)
    return msgspec.structs.replace(seen, step_s=None)


def _activations(lab: Lab, n_times: float) -> Seen:
    """Without the fault the larger of the batches, each block checkpointed."""
    on_gpu = lab.device == "cuda"
    case = _case(
        lab,
        int((6 if on_gpu else 8) * (n_times or 8)),
        (40 if on_gpu else 2) * GIB,
        attention="sdpa",
        checkpointing="none" if n_times else "every-block",
        precision="bf16" if on_gpu else "fp32",
    )
    seen = lab.case(case, protocol=BRIEF, recorded=True, profiled=False)
    return msgspec.structs.replace(seen, step_s=None)


def _growing(lab: Lab, step_mib: float) -> Seen:
    """A cache of a gibibyte to which torch.cat adds; without the fault it is written in place."""
    width = 2**20 // 2
    most = 64
    whole = torch.zeros(2048, width, dtype=torch.bfloat16, device=lab.device)
    held = {"cache": whole[:1024].clone() if step_mib else whole}

    def step() -> None:
        cache = held["cache"]
        if not step_mib:
            cache[-1].fill_(1.0)
            return
        new = torch.ones(int(step_mib), width, dtype=torch.bfloat16, device=lab.device)
        grown = torch.cat((cache, new))
        held["cache"] = grown if len(grown) < 1024 + most * step_mib else whole[:1024].clone()

    # Steps enough for what is let go to fill an H200's half.
    long = msgspec.structs.replace(PROTOCOL, min_steps=60, max_steps=60)
    seen = lab.measured(step, name=f"growing cache, {step_mib:g} MiB a step", protocol=long)
    held.clear()
    return seen


FAULTS = (
    # What their rules read is of any device, and on a GPU a process each takes half a minute.
    Fault("MEM001", "a batch too large", "times the batch that fits", (64, 256), _too_much, "cpu"),
    Fault("MEM002", "activations kept", "times 8 sequences", (7, 8), _activations, "cpu"),
    Fault("MEM004", "a cache that torch.cat grows", "MiB a step", (16, 64), _growing),
)
