"""A small piece of code that is ready to run, what is known of it beforehand, and formulas compiled."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

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


class Compiled:
    """A function that its first call compiles for fixed shapes.

    Inductor adds up the bytes that each kernel reads and writes, its own buffers included, and reports
    the sum in the log "inductor_metrics" (torch 2.13, `_inductor/graph.py`, `count_bytes`). A graph
    from its disk cache is not counted, so graphs are compiled again here; compiled kernels may still
    come from that cache.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._call = torch.compile(function, dynamic=False)
        self.moved_bytes: int | None = None
        """The bytes that a call moves; None before the first call."""

    def __call__(self, *inputs: Any) -> Any:
        if self.moved_bytes is not None:
            return self._call(*inputs)
        from torch._inductor import metrics

        with _counted():
            before = metrics.num_bytes_accessed
            result = self._call(*inputs)
            self.moved_bytes = metrics.num_bytes_accessed - before
        return result


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


@contextmanager
def _counted() -> Iterator[None]:
    """Makes Inductor count the bytes of everything that is compiled inside, and keeps its log quiet. It
    first forgets earlier compilations: else a function's first compilation here would count as its
    second."""
    from torch._inductor import compile_fx, config

    log = compile_fx.inductor_metrics_log
    level = log.level
    torch.compiler.reset()
    # A filter, because torch sets its loggers' handlers and propagation again when it begins to compile.
    log.addFilter(_nothing)
    log.setLevel(logging.INFO)
    try:
        with config.patch(fx_graph_cache=False):
            yield
    finally:
        log.setLevel(level)
        log.removeFilter(_nothing)


def _nothing(_record: logging.LogRecord) -> bool:
    return False
