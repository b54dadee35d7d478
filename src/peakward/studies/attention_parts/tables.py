"""The tables and the plot of `attention-parts`."""

from collections.abc import Sequence

from peakward.records.case import OperatorCase
from peakward.records.study import Cell as TableCell
from peakward.records.study import Column, Plot, Point, Series, Table
from peakward.studies.attention_parts.grid import DIRECTIONS, Cell, heads
from peakward.studies.attention_parts.times import PartTimes
from peakward.studies.attention_parts.work import work as part_work
from peakward.studies.readings import median_s, ratio, status, verdict

CASE_COLUMNS = (
    Column(name="heads"),
    Column(name="batch × length"),
    Column(name="precision"),
)


def _case(case: OperatorCase) -> tuple[str, str, str]:
    """Cells for `CASE_COLUMNS`: heads as "12 × 64", their number and width."""
    return (
        f"{case.n_heads} × {case.head_dim}",
        f"{case.batch_size} × {case.seq_len}",
        case.precision,
    )


def times(cells: Sequence[Cell]) -> Table:
    """Each part's time, forward and backward."""
    names = (
        "attention",
        "score product",
        "scale and mask",
        "softmax",
        "casts",
        "value product",
        "rest",
    )
    return Table(
        title="Time of attention's parts",
        columns=(
            *CASE_COLUMNS,
            Column(name="status"),
            Column(name="direction"),
            *(Column(name=name, unit="s") for name in names),
            Column(name="softmax's share", unit="share"),
            Column(name="plain step", unit="s"),
            Column(name="verdict"),
        ),
        rows=tuple(
            (
                *_case(cell.case),
                status(cell.measurement),
                direction,
                *_seconds(cell.times(direction)),
                median_s(cell.measurement),
                verdict(cell.measurement),
            )
            for cell in cells
            for direction in DIRECTIONS
        ),
        note="The plain step is the measured time of both directions, with all that lies between.",
    )


def _seconds(told: PartTimes | None) -> tuple[float | None, ...]:
    if told is None:
        return (None,) * 8
    return (
        told.whole_s,
        told.scores_s,
        told.mask_s,
        told.softmax_s,
        told.casts_s,
        told.values_s,
        told.rest_s,
        told.softmax_share,
    )


def work(cells: Sequence[Cell]) -> Table:
    """What each part has to do forward, and how fast it got it done."""
    return Table(
        title="Work of attention's parts, forward",
        columns=(
            *CASE_COLUMNS,
            Column(name="part"),
            Column(name="time", unit="s"),
            Column(name="FLOPs", unit="flops"),
            Column(name="rate", unit="flops_per_s"),
            Column(name="bytes", unit="bytes"),
            Column(name="bandwidth", unit="bytes_per_s"),
        ),
        rows=tuple(row for cell in cells for row in _work(cell)),
    )


def _work(cell: Cell) -> tuple[tuple[TableCell, ...], ...]:
    told, needed = cell.times("forward"), part_work(cell.case)
    if told is None:
        return ()
    parts = (
        ("score product", told.scores_s, needed.scores),
        ("softmax", told.softmax_s, needed.softmax),
        ("casts", told.casts_s, needed.casts),
        ("value product", told.values_s, needed.values),
    )
    return tuple(
        (
            *_case(cell.case),
            name,
            part_s,
            part.flops or None,
            ratio(part.flops or None, part_s),
            part.n_bytes,
            ratio(part.n_bytes, part_s),
        )
        for name, part_s, part in parts
        if part is not None
    )


def ratios(cells: Sequence[Cell]) -> Table:
    """The softmax against both products: what its time is, and what its FLOPs would make it."""
    return Table(
        title="The softmax against both products, forward",
        columns=(
            *CASE_COLUMNS,
            Column(name="ratio of times", unit="ratio"),
            Column(name="ratio of FLOPs", unit="ratio"),
            Column(name="time for a FLOP, over the products'", unit="ratio"),
        ),
        rows=tuple(
            (
                *_case(cell.case),
                told.over_products,
                part_work(cell.case).over_products,
                ratio(told.over_products, part_work(cell.case).over_products),
            )
            for cell in cells
            if (told := cell.times("forward")) is not None
        ),
    )


def plot(cells: Sequence[Cell]) -> Plot:
    """The softmax's share by length, a line for each heads and precision."""
    lines: dict[tuple[int, int, str], list[Point]] = {}
    for cell in cells:
        told = cell.times("forward")
        if told is not None:
            point = Point(x=cell.case.seq_len, y=told.softmax_share)
            lines.setdefault(heads(cell.case), []).append(point)
    return Plot(
        title="The softmax's share of attention, forward",
        kind="lines",
        x_label="sequence length",
        y_label="share of attention's time",
        x_unit="count",
        y_unit="share",
        log_x=True,
        series=tuple(
            Series(name=f"{n_heads} × {width}, {precision}", points=tuple(points))
            for (n_heads, width, precision), points in lines.items()
        ),
    )
