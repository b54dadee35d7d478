"""What torch.compile makes of a formula, with the bytes that its kernels move."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Compiled:
    """A function whose first call compiles it, for shapes as they come.

    Inductor adds up what each kernel that it makes reads and writes, buffers of its own included, and
    tells whoever asks for the log "inductor_metrics" (torch 2.13, `_inductor/graph.py`, `count_bytes`).
    A graph out of its disk cache is not counted, so graphs are made anew here; compiled kernels may
    still come from there.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._call = torch.compile(function, dynamic=False)
        self.moved_bytes: int | None = None
        """None before the first call."""

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
    """While it lasts, Inductor counts the bytes of what it compiles, and prints nothing of it. What was
    compiled before is forgotten: a function's second compilation would otherwise be its first."""
    from torch._inductor import compile_fx, config

    log = compile_fx.inductor_metrics_log
    level = log.level
    torch.compiler.reset()
    # By a filter: torch sets handlers and propagation of its loggers anew when it begins to compile.
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
