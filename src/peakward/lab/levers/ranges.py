"""The named ranges that a profiled step opens; a timed one opens none. A step also says which phase begins.

| range | around |
|-|-|
| `peakward::step` | one profiled step |
| `peakward::rehearsal` | a captured step, run once outside its graph before the profiled ones |
| `peakward::forward`, `::backward`, `::optimizer` | a phase, once for each micro-batch |
| `peakward::block N` | a call of block N of the reference decoder |
| `peakward::attention` | a call of any attention implementation |
| `peakward::data_load` | in a watched loop, the loader's `next` |
| `peakward::attention.scores`, `.softmax`, `.values` | a part of naive attention |

Ranges are the host's. What it launches inside them belongs to them; what the backward pass does
for a block or an attention carries the autograd sequence numbers of the forward operators inside
the range. A recomputed block opens its range, and those within, a second time inside
`peakward::backward`, on the thread that computes gradients.

Inside compiled code there is no Python and so there are no ranges: a compiled block keeps
`peakward::block N` alone, a compiled attention operator `peakward::attention` alone, a model
compiled as a whole its phases. Of a step captured as one CUDA graph only `peakward::step` remains;
its rehearsal has all the others, and `traces.origins` ties the graph's work to them.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch.profiler import record_function

from peakward.records.measurement import Phase

Mark = Callable[[Phase | None], None]
"""Called with a phase as it begins, and with None as the last one ends."""


def unmarked(_phase: Phase | None) -> None:
    """For a step whose phases nobody times."""


PREFIX = "peakward::"


@contextmanager
def opened(name: str) -> Iterator[None]:
    """The range `peakward::<name>`: for torch's profiler, and in a process that uses CUDA for Nsight
    Systems (NVTX) too. It takes some 10 µs of the host."""
    with record_function(PREFIX + name):
        if not torch.cuda.is_initialized():
            yield
            return
        torch.cuda.nvtx.range_push(PREFIX + name)
        try:
            yield
        finally:
            torch.cuda.nvtx.range_pop()


@contextmanager
def opened_phases(name: str) -> Iterator[Mark]:
    """The range `peakward::<name>` of a step or a rehearsal, giving the mark that opens a range for
    each of its phases.

    A phase's range ends where the next one's begins, and the last with the step, if not before.
    """
    with opened(name), ExitStack() as phase_range:

        def mark(phase: Phase | None) -> None:
            phase_range.close()
            if phase is not None:
                phase_range.enter_context(opened(phase))

        yield mark
