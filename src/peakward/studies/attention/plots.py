"""The plots of `attention`: time and memory by length."""

from collections.abc import Sequence

from peakward.records.study import Plot, Point
from peakward.studies.attention.grid import Cell, groups, place
from peakward.studies.drawing import point, series
from peakward.studies.readings import time


def plots(cells: Sequence[Cell]) -> tuple[Plot, ...]:
    """Forward, backward and memory for each precision and head dim."""
    return tuple(plot for group in groups(cells) for plot in (*_times(group), _held(group)))


def _times(group: Sequence[Cell]) -> tuple[Plot, ...]:
    return tuple(
        Plot(
            title=f"{name.capitalize()} time, {place(group[0])}",
            kind="lines",
            x_label="sequence length",
            y_label="time",
            x_unit="count",
            y_unit="s",
            log_x=True,
            log_y=True,
            series=series(
                (cell.arm.name, point(cell.seq_len, found))
                for cell in group
                if (found := time(getattr(cell, name).measurement)) is not None
            ),
        )
        for name in ("forward", "backward")
    )


def _held(group: Sequence[Cell]) -> Plot:
    return Plot(
        title=f"Held for backward, {place(group[0])}",
        kind="lines",
        x_label="sequence length",
        y_label="bytes held",
        x_unit="count",
        y_unit="bytes",
        log_x=True,
        log_y=True,
        series=series(
            (cell.arm.name, Point(x=cell.seq_len, y=held))
            for cell in group
            if (held := cell.held_bytes) is not None
        ),
    )
