"""A small piece of code, as a step."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from peakward.lab.levers.marks import Mark, unmarked
from peakward.lab.micro.subjects import build
from peakward.records.case import MicroCase


class PieceStep:
    """Runs the piece without gradients, and drops what it gives."""

    n_parameters = None
    optimizer = None
    model = None
    times_phases = False
    uncaptured = None

    def __init__(self, case: MicroCase) -> None:
        self.piece = build(case)

    def step(self, _mark: Mark = unmarked) -> None:
        """Once."""
        with torch.no_grad():
            self.piece.run()

    @contextmanager
    def ranged(self) -> Iterator[None]:
        """A piece has no parts to name."""
        yield

    def loss(self) -> float | None:
        """A piece has none."""
        return None

    def held_for_backward_bytes(self) -> None:
        """None: a piece runs without gradients."""
