"""A recorded step on the clock of its kernels, as rows of two tables with one row for each phase.

One table of both would be a third wider than a page of 1,200 pixels.
"""

from collections.abc import Iterator

from peakward.records.memory import CaseMemory, PeakMoment, PhasePeak
from peakward.records.study import Cell, Column

PEAKS_TITLE = "Peaks on the clock of the kernels"
PEAK_COLUMNS = (
    Column(name="phase"),
    Column(name="peak", unit="bytes"),
    Column(name="at", unit="s"),
    Column(name="operator", unit="name"),
    Column(name="kernel at work", unit="name"),
)
PEAKS_NOTE = (
    "Each phase of the recorded step at its peak: the time since the step began, the operator "
    "on the host and the kernel on the device."
)
QUEUE_TITLE = "How far the host was ahead at these peaks"
QUEUE_COLUMNS = (
    Column(name="phase"),
    Column(name="category"),
    Column(name="queued", unit="s"),
    Column(name="host ahead", unit="s"),
    Column(name="kernels from", unit="s"),
    Column(name="kernels to", unit="s"),
)
QUEUE_NOTE = (
    "Queued: how long the running kernel, of that category, had been queued. Host ahead: the "
    "time until all work launched before had run. Kernels: from the first start to the last "
    "end of the phase's kernels. The profiler and the recorded stacks slow the host; in a "
    "timed step the host is further ahead."
)


def peak_rows(memory: CaseMemory) -> list[tuple[Cell, ...]]:
    """Rows for `PEAK_COLUMNS`; none for a step without a clock."""
    return [
        (peak.phase, peak.allocated_bytes, at.at_s, at.operator, at.kernel)
        for peak, at in _moments(memory)
    ]


def queue_rows(memory: CaseMemory) -> list[tuple[Cell, ...]]:
    """Rows for `QUEUE_COLUMNS`; none for a step without a clock."""
    if memory.clock is None:
        return []
    kernels = {each.phase: (each.begin_s, each.end_s) for each in memory.clock.kernels}
    return [
        (
            peak.phase,
            at.category,
            at.queued_s,
            at.host_ahead_s,
            *kernels.get(peak.phase, (None, None)),
        )
        for peak, at in _moments(memory)
    ]


def _moments(memory: CaseMemory) -> Iterator[tuple[PhasePeak, PeakMoment]]:
    if memory.clock is not None:
        yield from zip(memory.phases, memory.clock.peaks, strict=True)
