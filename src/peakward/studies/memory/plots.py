"""The timeline of a step by category, and peaks by sequence length."""

from collections.abc import Iterator, Sequence

from peakward.records.memory import CaseMemory, StepClock
from peakward.records.study import Plot, Point, Series
from peakward.studies.drawing import series
from peakward.studies.memory.grid import Cell, named


def timelines(cells: Sequence[Cell]) -> tuple[Plot, ...]:
    """A line for each category that ever holds anything, and their sum: against time, where the step was
    joined to its kernels, with their phases beside."""
    return tuple(
        _timeline(cell, cell.memory)
        for cell in cells
        if cell.memory is not None and cell.memory.timeline
    )


def _timeline(cell: Cell, memory: CaseMemory) -> Plot:
    clock = memory.clock
    return Plot(
        title=f"{named(cell)}: what is held over a step",
        kind="lines",
        x_label="allocations and frees since the step began"
        if clock is None
        else "time since the step began",
        y_label="allocated" if clock is None else "allocated; at 0 when kernels of each phase ran",
        x_unit="count" if clock is None else "s",
        y_unit="bytes",
        series=(*_lines(memory), *(() if clock is None else _kernels(clock))),
    )


def _lines(memory: CaseMemory) -> Iterator[Series]:
    points, clock = memory.timeline, memory.clock
    at = [each.event for each in points] if clock is None else clock.times_s
    held = {
        name: [each.n_bytes[place] for each in points] for place, name in enumerate(memory.purposes)
    }
    lines = {"all": [sum(each.n_bytes) for each in points]}
    lines |= {name.replace("_", " "): n_bytes for name, n_bytes in held.items() if any(n_bytes)}
    for name, n_bytes in lines.items():
        yield Series(
            name=name, points=tuple(Point(x=x, y=y) for x, y in zip(at, n_bytes, strict=True))
        )


def _kernels(clock: StepClock) -> Iterator[Series]:
    for each in clock.kernels:
        points = (Point(x=each.begin_s, y=0), Point(x=each.end_s, y=0))
        yield Series(name=f"kernels of {each.phase}", points=points)


def peaks(cells: Sequence[Cell]) -> Plot:
    """A line for each size, precision and pass."""
    return Plot(
        title="Peak memory of a step by sequence length",
        kind="lines",
        x_label="sequence length",
        y_label="peak",
        x_unit="count",
        y_unit="bytes",
        log_x=True,
        log_y=True,
        series=series(
            (
                f"{cell.case.model.name} {cell.case.configuration.precision} "
                f"{cell.case.workload.pass_}",
                Point(x=cell.case.workload.seq_len, y=cell.peak.allocated_bytes),
            )
            for cell in cells
            if cell.peak is not None
        ),
    )
