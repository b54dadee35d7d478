"""Compiles a formula with torch.compile and counts the bytes that its kernels move."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


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
