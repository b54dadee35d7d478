"""Pieces of code by their case, and what one step of each does."""

from collections.abc import Callable

import pytest

from peakward.lab.micro.subjects import build
from peakward.lab.micro.work import piece_work
from peakward.records.case import MicroCase
from peakward.records.measurement import PieceWork

ROUNDOFF = 2.0**-24
TERMS = 64
"""No sum of these tests has more of them, and the bound on its error is u for each (Higham 2002,
"Accuracy and stability of numerical algorithms", 3.1)."""


@pytest.fixture
def work() -> Callable[..., PieceWork]:
    """Of a piece, by subject, name and sizes, on a CPU."""

    def make(subject: str, piece: str, *sizes: int, **fields: object) -> PieceWork:
        case = MicroCase(subject=subject, piece=piece, sizes=sizes, device="cpu", **fields)
        return piece_work(build(case))

    return make


@pytest.fixture
def bound() -> float:
    """On the difference from fp64 of sums in fp32."""
    return TERMS * ROUNDOFF
