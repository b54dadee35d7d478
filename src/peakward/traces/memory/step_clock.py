"""A recorded step of a GPU on the clock of its kernels.

The allocator's history counts, and torch's profiler times. Both record every allocation and free of one
allocator under its lock, so the n-th of one is the n-th of the other. The address and size of each must
agree, or nothing is joined.
"""

from typing import NamedTuple

import numpy as np

from peakward.records.errors import PeakwardError
from peakward.records.measurement import Phase
from peakward.records.memory import KernelPhase, MemoryMarks, PeakMoment, StepClock
from peakward.traces.calls import by_name
from peakward.traces.category_rules import Category
from peakward.traces.intervals import Nest, nest, rows_of
from peakward.traces.kernel_names import short_name
from peakward.traces.memory.block_sizes import SMALL_BYTES, rounded
from peakward.traces.memory.case_memory import Moments, Recorded
from peakward.traces.memory.memory import Memory
from peakward.traces.memory.table import Action, MemoryEvents
from peakward.traces.phase_names import PhaseCode
from peakward.traces.readers.torch_allocations import AllocatorEvents
from peakward.traces.row_categories import CATEGORIES, operator_category
from peakward.traces.step_spans import step_rows
from peakward.traces.table import NONE, HostKind, TraceTable
from peakward.traces.trace import Trace

NS = 1e-9
PHASE_CODES: dict[Phase, PhaseCode] = {
    "forward": PhaseCode.FORWARD,
    "backward": PhaseCode.BACKWARD,
    "optimizer": PhaseCode.OPTIMIZER,
}


def check_joined(events: MemoryEvents, seen: AllocatorEvents) -> None:
    """Check that these allocations and frees of the history are those of the trace, one for one.

    Args:
        events: allocations and frees alone, of one device.

    Raises:
        PeakwardError: there are more of one, or a pair differs in address, direction or block.
    """
    if len(events) != len(seen.at_ns):
        raise PeakwardError(
            f"expected one event of the trace for each allocation and free, got {len(seen.at_ns):,} "
            f"for {len(events):,}"
        )
    made = events.action == Action.ALLOC
    # The history has the requested size, the profiler the block's: rounded, and up to 1 MiB uncut.
    spare = np.abs(seen.n_bytes) - rounded(events.n_bytes)
    same = (events.address == seen.address) & (made == (seen.n_bytes > 0))
    wrong = np.flatnonzero(~same | (spare < 0) | (spare > SMALL_BYTES))
    if len(wrong):
        first = int(wrong[0])
        raise PeakwardError(
            f"expected allocation or free {first:,} of the trace to be the history's "
            f"({int(events.n_bytes[first]):,} bytes at {int(events.address[first]):#x}), got "
            f"{int(seen.n_bytes[first]):,} bytes at {int(seen.address[first]):#x}"
        )


def step_clock(
    memory: Memory,
    marks: MemoryMarks,
    step: Recorded,
    trace: Trace,
    seen: AllocatorEvents,
) -> StepClock:
    """The clock of a step that `recorded` analysed, from the trace of the same step.

    Raises:
        PeakwardError: the two do not agree, or the trace has no range of a step.
    """
    if marks.traced is None:
        raise PeakwardError("expected a step that was traced, got one that was not")
    (device,) = memory.devices
    counted = np.isin(device.events.action, (Action.ALLOC, Action.FREE_REQUESTED))
    check_joined(device.events.of(np.flatnonzero(counted)[slice(*marks.traced)]), seen)
    steps = step_rows(trace.table)
    if not len(steps):
        raise PeakwardError("expected the range of a step in the trace, got none")
    times = _Times(
        moments=Moments(device.events, marks),
        first=marks.traced[0],
        begin_ns=int(trace.table.host.start_ns[steps[0]]),
        seen=seen,
    )
    begin = times.moments.of(marks.begin)
    work = _Work(trace)
    return StepClock(
        trace=trace.table.source,
        times_s=tuple(times.since_s(times.at_ns(begin + each.event)) for each in step.timeline),
        peaks=tuple(_peak(each.phase, begin + each.event, times, work) for each in step.phases),
        kernels=_kernels(trace, times),
    )


class _Times(NamedTuple):
    """The times of a recording's events."""

    moments: Moments
    first: int
    """Allocations and frees before the trace's first one."""
    begin_ns: int
    """The start of the step."""
    seen: AllocatorEvents

    def row(self, position: int) -> int:
        """The row of the last event of the trace before a position of the history; NONE before its first."""
        return max(self.moments.counted(position) - self.first, 0) - 1

    def at_ns(self, position: int) -> int:
        row = self.row(position)
        return self.begin_ns if row == NONE else int(self.seen.at_ns[row])

    def since_s(self, at_ns: int) -> float:
        return (at_ns - self.begin_ns) * NS


class _Work:
    """The work of host and device at a time."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.table = trace, trace.table
        self.computing = _computing(trace.table)
        host = trace.table.host
        launched = np.append(host.start_ns, 0)[trace.launches]
        self.launched_ns = np.where(trace.launches == NONE, np.iinfo(np.int64).max, launched)
        self.threads = {
            (self.table.processes[each.process], each.tid): index
            for index, each in enumerate(self.table.threads)
        }

    def operator(self, thread: tuple[str, str], at_ns: int) -> str | None:
        row = int(self.computing.innermost([self.threads.get(thread, NONE)], [at_ns])[0])
        return None if row == NONE else self.table.names[int(self.table.host.name[row])]

    def running(self, at_ns: int) -> int:
        """The GPU row that runs then, the last to start where there are several; NONE where none runs."""
        gpu = self.table.gpu
        rows = np.flatnonzero((gpu.start_ns <= at_ns) & (at_ns < gpu.end_ns))
        return int(rows[-1]) if len(rows) else NONE

    def ahead_ns(self, at_ns: int) -> int:
        """Time until the end of all work launched by then."""
        ends = self.table.gpu.end_ns[self.launched_ns <= at_ns]
        return max(int(ends.max(initial=at_ns)) - at_ns, 0)


def _computing(table: TraceTable) -> Nest:
    """Operators without those that only allocate or make views: `aten::empty` is called within others."""
    rows = rows_of(table.host, (HostKind.OP,))
    is_framework = by_name(
        table.names,
        table.host.name[rows],
        lambda name: int(operator_category(name) == Category.FRAMEWORK),
    )
    return nest(table.host, rows[is_framework == 0])


def _peak(phase: Phase, position: int, times: _Times, work: _Work) -> PeakMoment:
    at_ns, event = times.at_ns(position), times.row(position)
    row = work.running(at_ns)
    gpu, idle = work.table.gpu, row == NONE
    known = not idle and int(work.trace.launches[row]) != NONE
    return PeakMoment(
        phase=phase,
        at_s=times.since_s(at_ns),
        operator=None if event == NONE else work.operator(times.seen.thread[event], at_ns),
        kernel=None if idle else short_name(work.table.names[int(gpu.name[row])]),
        category=None if idle else str(CATEGORIES[int(work.trace.categories[row])]),
        queued_s=int(gpu.start_ns[row] - work.launched_ns[row]) * NS if known else None,
        host_ahead_s=work.ahead_ns(at_ns) * NS,
    )


def _kernels(trace: Trace, times: _Times) -> tuple[KernelPhase, ...]:
    gpu, found = trace.table.gpu, []
    for phase, code in PHASE_CODES.items():
        mine = trace.phases.code == code
        if mine.any():
            found.append(
                KernelPhase(
                    phase=phase,
                    begin_s=times.since_s(int(gpu.start_ns[mine].min())),
                    end_s=times.since_s(int(gpu.end_ns[mine].max())),
                )
            )
    return tuple(found)
