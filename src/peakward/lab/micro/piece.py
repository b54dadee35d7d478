"""A small piece of code that is ready to run, and what is known of it beforehand."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from peakward.lab.micro.compiled import Compiled
from peakward.records.case import MicroCase
from peakward.records.errors import PeakwardError

COMPILED = "compiled"
"""The name of the compiled piece in every subject that has one."""
DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
}


class Piece(NamedTuple):
    """A piece to time, and the reference for its numbers."""

    run: Callable[[], Any]
    """Returns a tensor or several, a NumPy array or nested lists of floats; None where torch refuses."""
    inputs: tuple[Tensor, ...]
    """The inputs as `run` reads them, with their strides."""
    flops: int
    oracle: Callable[[], Tensor]
    """Returns the same result in fp64 on the same inputs; several tensors are joined along the last
    dimension."""
    compiled: Compiled | None = None
    """The compiled function that `run` calls; None for a piece that is not compiled."""
    dispatched: bool = True
    """Whether torch's dispatcher sees all work of a piece that is not compiled."""


def drawn(case: MicroCase, *shape: int) -> Tensor:
    """Random normal numbers in the case's type, on its device; equal for equal cases and shapes."""
    generator = torch.Generator(case.device).manual_seed(case.seed)
    numbers = torch.randn(shape, generator=generator, device=case.device)
    return numbers.to(DTYPES[case.precision])


def sizes(case: MicroCase, *names: str) -> tuple[int, ...]:
    """The case's sizes, one for each name, all positive.

    Raises:
        PeakwardError: another number of them, or one that is not positive.
    """
    if len(case.sizes) != len(names) or min(case.sizes) < 1:
        raise PeakwardError(
            f"expected {len(names)} positive sizes ({', '.join(names)}) for {case.subject}, got "
            f"{case.sizes}"
        )
    return case.sizes


def chosen(case: MicroCase, pieces: dict[str, Any]) -> Any:
    """The case's piece among those of its subject.

    Raises:
        PeakwardError: there is none of that name.
    """
    if case.piece not in pieces:
        raise PeakwardError(
            f"expected a piece of {case.subject} ({', '.join(pieces)}), got {case.piece!r}"
        )
    return pieces[case.piece]
