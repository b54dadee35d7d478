"""The rooflines: the operators of one step each, under the roof of its precision."""

from collections.abc import Sequence

from peakward.records.study import Plot, Point, Series
from peakward.studies.roofline.cells import Cell, largest
from peakward.studies.roofline.sums import notable


def plots(cells: Sequence[Cell]) -> tuple[Plot, ...]:
    """Of each size, precision and fusion, at the largest batch that was profiled."""
    return tuple(plot for cell in largest(cells) if (plot := _roofline(cell)) is not None)


def _roofline(cell: Cell) -> Plot | None:
    """None where the matmul rate is unknown, or nothing that computes was measured."""
    marks = _marks(cell)
    if cell.ridge is None or not marks:
        return None
    return Plot(
        title=f"Roofline: {cell.name}",
        kind="roofline",
        x_label="intensity (operations/byte)",
        y_label="operations/s",
        x_unit="count",
        y_unit="flops_per_s",
        log_x=True,
        log_y=True,
        series=(_roof(cell, cell.ridge, marks), *marks),
    )


def _marks(cell: Cell) -> tuple[Series, ...]:
    """What computes nothing has no place on logarithmic axes; the table has all."""
    return tuple(
        Series(name=each.kind, points=(Point(x=each.intensity, y=each.rate, label=each.kind),))
        for each in notable(cell)
        if each.rate
    )


def _roof(cell: Cell, ridge: float, marks: Sequence[Series]) -> Series:
    assert cell.on is not None
    xs = [ridge, *(point.x for each in marks for point in each.points)]
    low, high, bandwidth = min(xs) / 4, max(xs) * 4, cell.on.bytes_per_s
    return Series(
        name=f"{cell.precision} roof",
        points=(
            Point(x=low, y=low * bandwidth),
            Point(x=ridge, y=ridge * bandwidth),
            Point(x=high, y=ridge * bandwidth),
        ),
    )
