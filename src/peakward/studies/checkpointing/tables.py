"""The tables and the plot of `checkpointing`."""

from peakward.records.study import Column, Plot, Point, Table
from peakward.studies.cases import SIZE_COLUMNS, place, size_cells
from peakward.studies.checkpointing.grid import Cell
from peakward.studies.checkpointing.largest import Found
from peakward.studies.drawing import series
from peakward.studies.peaks import predicted_peak
from peakward.studies.readings import median_s, peak_bytes, ratio, status, verdict


def costs(cells: tuple[Cell, ...]) -> Table:
    """What each mode saves and costs."""
    return Table(
        title="Memory and time by what is recomputed",
        columns=(
            *SIZE_COLUMNS,
            Column(name="checkpointing"),
            Column(name="status"),
            Column(name="peak memory", unit="bytes"),
            Column(name="of none's", unit="share"),
            Column(name="peak lies in"),
            Column(name="predicted peak", unit="bytes"),
            Column(name="median", unit="s"),
            Column(name="over none's", unit="ratio"),
            Column(name="recomputed", unit="flops"),
            Column(name="of the model's FLOPs", unit="share"),
            Column(name="verdict"),
        ),
        rows=tuple(
            (
                *size_cells(cell.case),
                cell.mode,
                status(cell.measurement),
                peak_bytes(cell.measurement),
                cell.peak_share,
                cell.phase,
                predicted_peak(cell.case),
                median_s(cell.measurement),
                cell.time_ratio,
                cell.recomputed_flops,
                cell.recomputed_share,
                verdict(cell.measurement),
            )
            for cell in cells
        ),
        note="The phase of the peak is that of the predicted one, told where the two are within 5%. On a CPU "
        "what is measured is the process, whose peak is not predicted.",
    )


def largest(found: tuple[Found, ...]) -> Table:
    """The largest batch and sequence that fit each limit."""
    none = {_without_mode(each): each.bracket.fits for each in found if each.search.mode == "none"}
    return Table(
        title="The largest batch and the longest sequence that fit",
        columns=(
            Column(name="model"),
            Column(name="limit", unit="bytes"),
            Column(name="largest"),
            Column(name="checkpointing"),
            Column(name="fits", unit="count"),
            Column(name="does not fit", unit="count"),
            Column(name="over none's", unit="ratio"),
            Column(name="search"),
        ),
        rows=tuple(
            (
                each.search.shape.name,
                each.search.limit_bytes,
                what(each),
                each.search.mode,
                each.bracket.fits or None,
                each.bracket.too_large,
                ratio(each.bracket.fits or None, none.get(_without_mode(each))),
                "complete" if each.bracket.stopped is None else f"ended by: {each.bracket.stopped}",
            )
            for each in found
        ),
        note="Two whole train steps ran at the value that fits and did not at the one that does not.",
    )


def what(found: Found) -> str:
    """What grew: "batch at sequence 512", "sequence at batch 4"."""
    other = "sequence" if found.search.axis == "batch" else "batch"
    return f"{found.search.axis} at {other} {found.fixed}"


def _without_mode(found: Found) -> tuple[object, ...]:
    search = found.search
    return search.shape, search.axis, search.limit_bytes


def plot(cells: tuple[Cell, ...]) -> Plot:
    """Each mode at its step time and its peak, a line for each size and sequence."""
    shown = [
        (cell, step_s, peak)
        for cell in cells
        if (step_s := median_s(cell.measurement)) is not None
        and (peak := peak_bytes(cell.measurement)) is not None
    ]
    return Plot(
        title="Peak memory against step time",
        kind="lines",
        x_label="step time",
        y_label="peak memory",
        x_unit="s",
        y_unit="bytes",
        log_x=True,
        log_y=True,
        series=series(
            (place(cell.case), Point(x=step_s, y=peak, label=cell.mode))
            for cell, step_s, peak in sorted(shown, key=lambda each: each[1])
        ),
    )
