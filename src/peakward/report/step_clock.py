"""A recorded step on the clock of its kernels, as rows of a table: a phase each."""

from peakward.records.case_memory import CaseMemory
from peakward.records.study import Cell, Column

COLUMNS = (
    Column(name="phase"),
    Column(name="peak", unit="bytes"),
    Column(name="at", unit="s"),
    Column(name="operator", unit="name"),
    Column(name="kernel at work", unit="name"),
    Column(name="category"),
    Column(name="queued", unit="s"),
    Column(name="host ahead", unit="s"),
    Column(name="kernels from", unit="s"),
    Column(name="kernels to", unit="s"),
)
NOTE = (
    "Of the recorded step, since it began: at its peak the operator that the host was in, the kernel that "
    "the device ran, how long that had been queued, and how long until all that was launched before had "
    "run; kernels are from the first start to the last end of what the phase launched. The profiler and "
    "the stacks that were taken slow the host: a step that is timed has its host further ahead."
)


def rows(memory: CaseMemory) -> list[tuple[Cell, ...]]:
    """For `COLUMNS`; none of a step that has no clock."""
    if memory.clock is None:
        return []
    kernels = {each.phase: each for each in memory.clock.kernels}
    found: list[tuple[Cell, ...]] = []
    for peak, moment in zip(memory.phases, memory.clock.peaks, strict=True):
        work = kernels.get(peak.phase)
        found.append(
            (
                peak.phase,
                peak.allocated_bytes,
                moment.at_s,
                moment.operator,
                moment.kernel,
                moment.category,
                moment.queued_s,
                moment.host_ahead_s,
                None if work is None else work.begin_s,
                None if work is None else work.end_s,
            )
        )
    return found
