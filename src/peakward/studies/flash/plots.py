"""The plots of `flash`: rates by length."""

from collections.abc import Sequence

from peakward.records.study import Plot
from peakward.studies.drawing import point, series
from peakward.studies.flash.grid import Cell, groups, place


def plots(cells: Sequence[Cell]) -> tuple[Plot, ...]:
    """A line for each arm, a plot for each precision, head dim and pass."""
    return tuple(
        Plot(
            title=f"Rate by length, {place(group[0])}",
            kind="lines",
            x_label="sequence length",
            y_label="FLOP/s",
            x_unit="count",
            y_unit="flops_per_s",
            log_x=True,
            series=series(
                (cell.arm.name, point(cell.seq_len, cell.rate))
                for cell in group
                if cell.rate is not None
            ),
        )
        for group in groups(cells)
    )
