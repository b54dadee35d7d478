"""The ranks of the tests of layouts: three steps beside a single process's, in fp64."""

import gc
import weakref

import msgspec
import torch
import torch.nn.functional as F
from torch import nn

from peakward.lab.levers.module_levers import recompute
from peakward.lab.models import decoder
from peakward.lab.parallel import ranks
from peakward.lab.parallel.step import ParallelStep
from peakward.levers import catalogue
from peakward.models.presets import model
from peakward.records.case import Configuration
from peakward.records.layout import Layout

SEQ_LEN, VOCAB = 6, 24
N_STEPS = 3
BATCH = 8
"""Sequences of all ranks together."""
OPTIMIZERS = {"sgd": (torch.optim.SGD, {"lr": 0.5}), "adamw": (torch.optim.AdamW, {"lr": 1e-2})}


class Odd(nn.Module):
    """Tied weights, a frozen layer, a buffer, and shapes that no number of ranks divides."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCAB, 5)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 5)) for _ in range(3)
        )
        self.frozen = nn.Linear(5, 5)
        self.frozen.requires_grad_(False)
        self.head = nn.Linear(5, VOCAB)
        self.head.weight = self.table.weight
        self.scale = nn.Parameter(torch.tensor([1.5]))
        self.register_buffer("shift", torch.full((5,), 0.25))

    def forward(self, ids, targets):
        x = self.table(ids) * self.scale + self.shift
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        logits = self.head(self.frozen(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Single(nn.Module):
    """Fewer parameters than ranks, so that some rank owns nothing."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(VOCAB))

    def forward(self, ids, targets):
        return (self.weight[ids] - targets).pow(2).mean()


def made(kind):
    torch.manual_seed(0)
    if kind in ("odd", "single"):
        return (Odd if kind == "odd" else Single)().double()
    shape = msgspec.structs.replace(
        model("tiny"),
        name="test",
        vocab_size=VOCAB,
        n_layers=4,
        d_model=16,
        d_ff=24,
        n_heads=4,
        n_kv_heads=4 if kind == "learned" else 2,
        head_dim=4,
        max_seq_len=SEQ_LEN,
        tied_head=kind == "tied",
        qkv_bias=kind == "learned",
        bias=kind == "learned",
        positions="learned" if kind == "learned" else "rope",
        gated=kind != "learned",
        activation="silu" if kind != "learned" else "gelu",
    )
    return decoder.build(
        shape,
        attention=catalogue.function("attention", Configuration()),
        device="cpu",
        dtype=torch.float64,
        seed=1,
    )


def batches():
    generator = torch.Generator().manual_seed(3)
    ids = [torch.randint(VOCAB, (BATCH, SEQ_LEN), generator=generator) for _ in range(2 * N_STEPS)]
    return list(zip(ids[::2], ids[1::2], strict=True))


def alone(kind, optimizer):
    """Parameters and last gradients of one process."""
    module = made(kind)
    make, options = OPTIMIZERS[optimizer]
    update = make([each for each in module.parameters() if each.requires_grad], **options)
    for ids, targets in batches():
        update.zero_grad()
        module(ids, targets).backward()
        update.step()
    names = dict(module.named_parameters(remove_duplicate=False))
    return names, {name: each.grad for name, each in names.items() if each.grad is not None}, update


def compare(rank, arguments, tell):
    """For each case: the largest difference to one process, and the bytes that this rank holds."""
    found = []
    for at, case in enumerate(arguments["cases"]):
        tell(at + 1, f"{case['kind']} {case['layout']}")
        found.append(
            _case(
                rank,
                msgspec.convert(case["layout"], Layout),
                case["kind"],
                case["optimizer"],
                case.get("compiled", False),
                case.get("checkpointing", "none"),
            )
        )
    return found


def compare_and_look(rank, arguments, tell):
    """`compare` and `stages_left` in one job: each rank takes seconds to import torch."""
    return {
        "compared": compare(rank, arguments, tell),
        "stages": stages_left(rank, arguments, tell),
    }


def _case(rank, layout, kind, optimizer, compiled=False, checkpointing="none"):
    module = made(kind).to(rank.device)
    recompute(module, checkpointing)
    calls = []
    if not compiled:
        for each in module.blocks:
            each.register_forward_hook(lambda *_: calls.append("once"))
            first = next(part for part in each.modules() if isinstance(part, nn.Linear))
            first.register_forward_hook(lambda *_: calls.append("computed"))
    if rank.number and layout.tp == layout.pp == 1 and layout.dp > 1:
        with torch.no_grad():
            for each in [*module.parameters(), *module.buffers()]:
                each.add_(rank.number)  # Construction must bring the first rank's to all.
    mesh = ranks.mesh(layout, rank)
    make, options = OPTIMIZERS[optimizer]
    step = ParallelStep(module, layout, mesh, optimizer=make, options=options, compiled=compiled)
    at = mesh["dp"].get_local_rank()
    losses = []
    for whole in batches():
        mine = tuple(each.chunk(layout.dp)[at].to(rank.device) for each in whole)
        loss = step.step(mine)
        losses.append(None if loss is None else float(loss))
    held = step.bytes_held()
    wanted, gradients, update = alone(kind, optimizer)
    named = step.parameters()
    whole = step.whole({name: each.detach() for name, each in named.items()})
    received = step.whole(
        {name: each.grad for name, each in named.items() if each.grad is not None}
    )
    state = [each for kept in update.state.values() for each in kept.values()]
    return {
        "names": sorted(named),
        "all_names": sorted(dict(made(kind).named_parameters())),
        "parameters": _apart(whole, wanted),
        "gradients": _apart(received, gradients),
        "n_gradients": len(received),
        "losses": losses,
        "computed": calls.count("computed") / max(1, calls.count("once")),
        "held": held,
        "alone": {
            "parameters": sum(
                each.nbytes for each in {id(each): each for each in wanted.values()}.values()
            ),
            "optimizer_state": sum(each.nbytes for each in state if isinstance(each, torch.Tensor)),
        },
        "buffer": float(module.shift[0]) if kind == "odd" else None,
    }


def _apart(found, wanted):
    return max(
        (float((each.cpu() - wanted[name]).abs().max()) for name, each in found.items()),
        default=0.0,
    )


def stages_left(rank, arguments, tell):
    """The blocks that are alive on this rank of a pipeline when nobody but its step has the model."""
    tell(1, "building")
    module = made("rope")
    blocks = [weakref.ref(each) for each in module.blocks]
    layout = Layout(pp=2, n_micro_batches=2)
    step = ParallelStep(module, layout, ranks.mesh(layout, rank), optimizer=torch.optim.SGD)
    del module
    gc.collect()
    left = [at for at, each in enumerate(blocks) if each() is not None]
    return {"left": left, "held": len(step.stages[0].blocks)}
