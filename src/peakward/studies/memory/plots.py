"""The timeline of a step by category, and peaks by sequence length."""

from collections.abc import Sequence

from peakward.records.study import Plot, Point, Series
from peakward.studies.drawing import series
from peakward.studies.memory.grid import Cell, named


def timelines(cells: Sequence[Cell]) -> tuple[Plot, ...]:
    """A line for each category that ever holds anything, and their sum."""
    return tuple(
        Plot(
            title=f"{named(cell)}: what is held over a step",
            kind="lines",
            x_label="allocations and frees since the step began",
            y_label="allocated",
            x_unit="count",
            y_unit="bytes",
            series=_lines(cell),
        )
        for cell in cells
        if cell.memory is not None and cell.memory.timeline
    )


def _lines(cell: Cell) -> tuple[Series, ...]:
    assert cell.memory is not None
    points = cell.memory.timeline
    held = {
        name: [each.n_bytes[place] for each in points]
        for place, name in enumerate(cell.memory.purposes)
    }
    lines = {"all": [sum(each.n_bytes) for each in points]}
    lines |= {name.replace("_", " "): n_bytes for name, n_bytes in held.items() if any(n_bytes)}
    return tuple(
        Series(
            name=name,
            points=tuple(Point(x=each.event, y=y) for each, y in zip(points, n_bytes, strict=True)),
        )
        for name, n_bytes in lines.items()
    )


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
