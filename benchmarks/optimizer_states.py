"""Does AdamW train as well with its moments in bf16 or 8 bits, and how long does its step take?

A small decoder is trained on real text with each kind of moments and each seed; all kinds begin from a seed's
weights and see its sequences in its order, so that their held-out losses are paired by seed. "No worse" is
said where the 95% interval of the mean difference to fp32 ends below the standard deviation of fp32's own
loss over the seeds: less than what another seed changes.

On a GPU the kernels train `small` in bf16 autocast over fp32 parameters, then each optimiser's step over the
parameters of `2.7B` is timed in turns, beside a copy. On a CPU the references train a tiny decoder; a
control, 8 bits rounded to nearest, shows what the comparison can see.

python benchmarks/optimizer_states.py --device cuda --text shakespeare --out optimizer-states.json
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from peakward.api.machine import this_machine
from peakward.kernels.ops.adamw import reference, stored
from peakward.kernels.ops.adamw.api import TritonAdamW
from peakward.kernels.ops.attention.api import implementation
from peakward.lab.data import text
from peakward.lab.data.tokenizer import ByteTokenizer
from peakward.lab.models.decoder import Decoder, build
from peakward.models.presets import model as preset
from peakward.records.case import Source
from peakward.records.model_shape import ModelShape
from peakward.stats.summary import interval_of_means, median_interval

STATES = {"fp32": "as parameters", "bf16": "bf16", "8bit": "8bit"}
NEAREST = "8bit to nearest"
HELD_OUT = 0.1
MOST_ROWS = 64
N_READINGS = 8
"""Points of a loss curve."""
TIMED_STEPS, TURNS = 3, 12


class ReferenceAdamW(TritonAdamW):
    """The same optimiser by its reference, on any device."""

    nearest = False

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        torch.optim.Optimizer.add_param_group(self, param_group)

    def _update(self, group: dict[str, Any], n_before: int) -> None:
        settings = {name: group[name] for name in ("lr", "betas", "eps", "weight_decay")}
        numbers = {id(each): n for n, each in enumerate(group["params"], n_before)}
        for step, chosen in self._by_count(group["params"]):
            step.add_(1)
            for each in chosen:
                state = self.state[each]
                random = {"seed": group["seed"], "number": numbers[id(each)]}
                if group["states"] == "8bit":
                    pairs = [
                        (state[f"{name}_codes"], state[f"{name}_exponents"])
                        for name in ("exp_avg", "exp_avg_sq")
                    ]
                    reference.update_8bit(each, each.grad, *pairs, step, **random, **settings)
                    continue
                moments = state["exp_avg"], state["exp_avg_sq"]
                if group["states"] == "bf16":
                    reference.update_bf16(each, each.grad, *moments, step, **random, **settings)
                else:
                    reference.update(each, each.grad, *moments, step, **settings)


class NearestAdamW(ReferenceAdamW):
    """Without random bits: half a distance for all."""

    def _update(self, group: dict[str, Any], n_before: int) -> None:
        drawn, stored.random_words = stored.random_words, _half
        try:
            super()._update(group, n_before)
        finally:
            stored.random_words = drawn


def _half(n: int, **_: int) -> Tensor:
    return torch.full((n,), 0x80008000)


Make = Callable[..., torch.optim.Optimizer]


def kinds(device: str) -> dict[str, Make]:
    """The optimisers that are compared, fp32 first."""
    ours = TritonAdamW if device == "cuda" else ReferenceAdamW
    made: dict[str, Make] = {name: partial(ours, states=value) for name, value in STATES.items()}
    if device == "cpu":
        return {**made, NEAREST: partial(NearestAdamW, states="8bit")}
    return {**made, **torchao_kinds()}


def torchao_kinds() -> dict[str, Make]:
    """torchao's 8-bit AdamW, where it is installed; it draws no random bits for its states."""
    try:
        from torchao.optim import AdamW8bit
    except ImportError:
        return {}

    def made(params: Any, lr: float, **_: int) -> torch.optim.Optimizer:
        return AdamW8bit(params, lr=lr, weight_decay=1e-2)

    return {"torchao 8bit": made}


def tokens(name: str, length: int, device: str) -> tuple[Tensor, Tensor]:
    """The bytes to train on, and the sequences (rows, length + 1) of the last tenth of the text."""
    encode = ByteTokenizer().encode
    documents = text.read(Source(name)).documents
    every = torch.from_numpy(np.concatenate([encode(each) for each in documents])).to(device)
    n_seen = int(len(every) * (1 - HELD_OUT))
    most = (len(every) - n_seen) // (length + 1)
    rows = min(MOST_ROWS, most)
    apart = most // rows * (length + 1)
    held_out = [every[n_seen + at * apart :][: length + 1] for at in range(rows)]
    return every[:n_seen], torch.stack(held_out)


@torch.inference_mode()
def read(model: Decoder, held_out: Tensor) -> float:
    """The mean loss of the held-out bytes."""
    losses = []
    for ids in held_out.split(16):
        logits = model(ids[:, :-1]).float()
        losses.append(F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none"))
    return float(torch.cat(losses).mean())


def trained(
    model: Decoder,
    make: Make,
    data: tuple[Tensor, Tensor],
    given: argparse.Namespace,
    *,
    seed: int,
) -> dict[str, Any]:
    """The held-out loss at some steps of one run, and the training loss between them."""
    seen, held_out = data
    model.initialise(seed)
    optimizer = make(model.parameters(), lr=given.lr, seed=seed)
    rising = max(1, given.steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda at: min((at + 1) / rising, (given.steps - at) / max(1, given.steps - rising)),
    )
    generator = torch.Generator().manual_seed(seed)
    within = torch.arange(given.length + 1)
    starts = torch.randint(
        len(seen) - given.length, (given.steps, given.batch), generator=generator
    )
    every = math.ceil(given.steps / N_READINGS)
    curve: list[dict[str, float]] = []
    since: list[Tensor] = []
    cast = torch.autocast(given.device, torch.bfloat16, enabled=given.device == "cuda")
    began = time.perf_counter()
    for at in range(given.steps):
        ids = seen[(starts[at][:, None] + within).to(seen.device)]
        optimizer.zero_grad(set_to_none=True)
        with cast:
            loss = model(ids[:, :-1], ids[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        since.append(loss.detach())
        if (at + 1) % every == 0 or at + 1 == given.steps:
            with cast:
                held = read(model, held_out)
            curve.append(
                {"step": at + 1, "train": float(torch.stack(since).mean()), "held_out": held}
            )
            since.clear()
    return {"seed": seed, "curve": curve, "wall_s": time.perf_counter() - began}


def judged(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Each kind against fp32 by the last held-out loss, paired by seed."""

    def last(name: str) -> list[float]:
        return [each["curve"][-1]["held_out"] for each in runs[name]]

    base = last("fp32")
    spread = statistics.stdev(base)
    found: dict[str, Any] = {"fp32": {"mean": statistics.fmean(base), "stdev_over_seeds": spread}}
    for name in runs:
        if name == "fp32":
            continue
        differences = [mine - theirs for mine, theirs in zip(last(name), base, strict=True)]
        interval = interval_of_means(differences)
        found[name] = {
            "mean": statistics.fmean(last(name)),
            "stdev_over_seeds": statistics.stdev(last(name)),
            "differences": differences,
            "mean_difference": interval.estimate,
            "interval": [interval.low, interval.high],
            "no_worse": interval.high < spread,
            "worse": interval.low > 0,
        }
    return found


def shape_of(given: argparse.Namespace) -> ModelShape:
    """The decoder that is trained: `small` with bytes as vocabulary, or a tiny one."""
    if given.device == "cuda":
        return msgspec.structs.replace(
            preset(given.model), vocab_size=ByteTokenizer.vocab_size, max_seq_len=given.length
        )
    return ModelShape(
        name="tiny",
        vocab_size=ByteTokenizer.vocab_size,
        n_layers=2,
        d_model=64,
        d_ff=192,
        n_heads=2,
        n_kv_heads=2,
        head_dim=32,
        max_seq_len=given.length,
    )


def losses(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Trains every kind with every seed; what is known after each seed."""
    shape = shape_of(given)
    model = build(
        shape,
        attention=implementation("sdpa"),
        device=given.device,
        dtype=torch.float32,
        seed=0,
    )
    if given.device == "cuda":
        for block in model.blocks:
            block.compile(dynamic=False)
    data = tokens(given.text, given.length, given.device)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in kinds(given.device)}
    for seed in range(given.seeds):
        for name, make in kinds(given.device).items():
            run = trained(model, make, data, given, seed=seed)
            runs[name].append(run)
            print(
                f"{name}, seed {seed}: {run['curve'][-1]['held_out']:.4f} ({run['wall_s']:.1f} s)"
            )
        if seed == 0:  # One seed has no spread.
            continue
        yield {
            "model": shape.name,
            "n_parameters": sum(each.numel() for each in model.parameters()),
            "text": given.text,
            "n_bytes_of_text": len(data[0]),
            "steps": given.steps,
            "batch": given.batch,
            "length": given.length,
            "lr": given.lr,
            "runs": runs,
            "judged": judged(runs),
        }


BYTES = {"torch fused": 28.0, "fp32": 28.0, "bf16": 20.0, "8bit": 16.0 + 4 / 256}
"""Read and written for a parameter, each stream once: parameter and moments twice, the gradient."""


def times(name: str) -> dict[str, Any]:
    """Every optimiser's step over the parameters of a preset in fp32, in turns with a copy."""
    with torch.device("meta"):
        planned = Decoder(preset(name), implementation("sdpa"))
    parameters = []
    for each in planned.parameters():
        made = torch.nn.Parameter(torch.randn(each.shape, device="cuda") * 0.02)
        made.grad = torch.randn(each.shape, device="cuda") * 0.01
        parameters.append(made)
    n = sum(each.numel() for each in parameters)
    makers: dict[str, Make] = {
        "torch fused": lambda params, lr: torch.optim.AdamW(params, lr=lr, fused=True),
        **{key: partial(TritonAdamW, states=value) for key, value in STATES.items()},
        **torchao_kinds(),
    }
    calls: dict[str, Callable[[], object]] = {}
    memory: dict[str, float] = {}
    for key, make in makers.items():
        before = torch.cuda.memory_allocated()
        optimizer = make(parameters, lr=1e-6)
        optimizer.step()
        memory[key] = (torch.cuda.memory_allocated() - before) / n
        calls[key] = optimizer.step
    source = torch.empty(1 << 30, device="cuda")
    target = torch.empty_like(source)
    calls["copy"] = lambda: target.copy_(source)
    taken: dict[str, list[float]] = {key: [] for key in calls}
    for _ in range(2):
        for call in calls.values():
            call()
    for order in turns(list(calls)):
        for key in order:
            taken[key].append(timed(calls[key]))
    rate = 8 * source.numel() / statistics.median(taken["copy"])
    return {
        "model": name,
        "n_parameters": n,
        "copy_bytes_per_s": rate,
        "optimizers": {
            key: told(taken[key], n * BYTES[key] if key in BYTES else None, rate)
            | {"state_bytes_a_parameter": memory[key]}
            for key in makers
        },
    }


def turns(keys: list[str]) -> Iterator[list[str]]:
    """Orders in which each is as often early as late."""
    for at in range(TURNS):
        order = keys[at % len(keys) :] + keys[: at % len(keys)]
        yield order if at % 2 == 0 else order[::-1]


def timed(call: Callable[[], object]) -> float:
    """Seconds of the device for one call, of some in a row."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(TIMED_STEPS):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / TIMED_STEPS


def told(seconds: list[float], n_bytes: float | None, rate: float) -> dict[str, Any]:
    """The median with its interval, and the share of the copy's rate that it moves its bytes at."""
    interval = median_interval(seconds)
    return {
        "median_s": interval.estimate,
        "interval_s": [interval.low, interval.high],
        "turns_s": seconds,
        "bytes": n_bytes,
        "share_of_copy": None if n_bytes is None else n_bytes / interval.estimate / rate,
    }


def main() -> None:
    """Write one JSON, and print the verdicts and the times."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--text", default="shakespeare")
    parser.add_argument("--model", default="small", help="the preset that a GPU trains")
    parser.add_argument("--timed", default="2.7B", help="the preset whose optimiser is timed")
    parser.add_argument("--only", choices=("losses", "times"))
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    if given.seeds is not None and given.seeds < 2:
        parser.error(f"expected --seeds from 2 on, got {given.seeds}: one seed has no spread")
    on_gpu = given.device == "cuda"
    given.seeds = given.seeds or (5 if on_gpu else 6)
    given.steps = given.steps or 400
    given.length = given.length or (512 if on_gpu else 128)
    given.lr = given.lr or (6e-4 if on_gpu else 2e-3)
    here = this_machine(given.device).environment
    record: dict[str, Any] = {"environment": msgspec.to_builtins(here)}
    if on_gpu and given.only != "losses":
        record["times"] = times(given.timed)
        torch.cuda.empty_cache()
        for key, each in record["times"]["optimizers"].items():
            share = each["share_of_copy"]
            print(
                f"{key}: {each['median_s'] * 1e3:.2f} ms, {each['state_bytes_a_parameter']:.2f} bytes of "
                f"state a parameter, {'' if share is None else f'{share:.0%} of a copy'}"
            )
    if given.only != "times":
        for record["losses"] in losses(given):
            given.out.write_text(json.dumps(record, indent=1))
        for key, each in record["losses"]["judged"].items():
            print(key, {name: value for name, value in each.items() if name != "differences"})
    given.out.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
