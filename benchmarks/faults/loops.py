"""What holds up a live loop, which `pw.watch` sees and a trace of three steps does not."""

import gc
import tempfile
from collections.abc import Iterator
from itertools import count, cycle
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from faults.host import Documents
from faults.lab import Lab, Loop, Step
from faults.records import Fault, Seen

WIDTH, N_ROWS = 512, 128
"""Some 5 ms a step on a CPU's core, nearly all of it products."""
SAVED_EVERY = 20


def _trained(batches: Iterator[Tensor], *, before: Step = lambda: None) -> Loop:
    """A perceptron towards its own input; `before` comes first in each step."""
    made = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))
    update = torch.optim.SGD(made.parameters(), lr=1e-3, fused=True)

    def step(x: Tensor) -> None:
        before()
        update.zero_grad()
        F.mse_loss(made(x), x).backward()
        update.step()

    return Loop(batches, step)


def _drawn() -> Iterator[Tensor]:
    return cycle([torch.randn(N_ROWS, WIDTH) for _ in range(8)])


def _waiting(lab: Lab, n_thousand: float) -> Seen:
    """Text is tokenised where a batch is asked for."""
    if not n_thousand:
        return lab.watched(_trained(_drawn()))
    read = Documents(WIDTH, 1000, int(1000 * n_thousand))
    batches = (ids[:1].expand(N_ROWS, -1) / 1000 for ids in DataLoader(read, batch_size=1))
    return lab.watched(_trained(batches))


def _collecting(lab: Lab, n_thousand: float) -> Seen:
    """gc.collect() in each step of a program that holds so many objects, those of this one's imports
    apart: with them a step took 0.26 s whatever it held."""
    gc.collect()
    gc.freeze()
    held = [[] for _ in range(int(1000 * n_thousand))]
    collect = gc.collect if n_thousand else lambda: None
    try:
        return lab.watched(_trained(_drawn(), before=collect))
    finally:
        held.clear()
        gc.unfreeze()


def _saving(lab: Lab, n_mib: float) -> Seen:
    """A checkpoint of so many MiB is written in every twentieth step."""
    state, steps = torch.zeros(int(n_mib * 2**18)), count(1)
    with tempfile.TemporaryDirectory(prefix="peakward-") as scratch:

        def save() -> None:
            if n_mib and next(steps) % SAVED_EVERY == 0:
                torch.save(state, Path(scratch) / "state.pt")

        return lab.watched(_trained(_drawn(), before=save))


FAULTS = (
    Fault(
        "LOOP001", "a loader that tokenises", "thousand characters", (5, 20, 80), _waiting, "cpu"
    ),
    Fault(
        "LOOP002",
        "gc.collect() in a live loop",
        "thousand objects",
        (30, 100, 1000),
        _collecting,
        "cpu",
    ),
    Fault("LOOP003", "checkpoints in a live loop", "MiB", (64, 256, 1024), _saving, "cpu"),
)
