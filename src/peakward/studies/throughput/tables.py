"""The tables and plots of `throughput`."""

from peakward.prediction.parameters import n_parameters
from peakward.records.study import Column, Plot, Point, Table
from peakward.report.format import format_cell
from peakward.studies.cases import SIZE_COLUMNS, size_cells
from peakward.studies.drawing import point, series
from peakward.studies.peaks import (
    CATEGORIES,
    OTHER,
    peak_categories,
    peak_phase,
    predicted_peak,
)
from peakward.studies.readings import (
    flops_per_s,
    median_s,
    peak_bytes,
    ratio,
    status,
    time,
    tokens_per_s,
    verdict,
)
from peakward.studies.throughput.limits import Row
from peakward.studies.throughput.speed import BASE, PASSES, Cell


def speeds(cells: tuple[Cell, ...]) -> Table:
    """Rates and speed-ups of the grid."""
    return Table(
        title="Throughput by precision",
        columns=(
            *SIZE_COLUMNS,
            Column(name="precision"),
            Column(name="status"),
            *(Column(name=name, unit="s") for name in ("median", "from", "to")),
            Column(name="throughput", unit="tokens_per_s"),
            Column(name="model FLOP/s", unit="flops_per_s"),
            Column(name=f"speed over {BASE}", unit="ratio"),
            Column(name="peak memory", unit="bytes"),
            Column(name="verdict"),
        ),
        rows=tuple(
            (
                *size_cells(cell.case),
                cell.case.configuration.precision,
                status(cell.measurement),
                *_interval_cells(cell),
                tokens_per_s(cell.measurement),
                flops_per_s(cell.measurement),
                cell.speedup.factor,
                peak_bytes(cell.measurement),
                verdict(cell.measurement),
            )
            for cell in cells
        ),
    )


def _interval_cells(cell: Cell) -> tuple[float | None, ...]:
    interval = time(cell.measurement)
    return (None,) * 3 if interval is None else (interval.estimate, interval.low, interval.high)


def memory(rows: tuple[Row, ...], limits: tuple[int, ...]) -> Table:
    """What trains under each limit, and what it costs."""
    return Table(
        title="What trains under a memory limit",
        columns=(
            *SIZE_COLUMNS,
            Column(name="precision and levers"),
            *(Column(name=format_cell(limit, "bytes")) for limit in limits),
            Column(name="peak, no limit", unit="bytes"),
            Column(name="median, no limit", unit="s"),
            Column(name="time over its precision alone", unit="ratio"),
        ),
        rows=tuple(
            (
                *size_cells(row.way.case),
                row.way.name,
                *("not run" if fit is None else fit.verdict for fit in row.fits),
                peak_bytes(row.free) if row.free and row.free.status == "ok" else status(row.free),
                median_s(row.free),
                ratio(median_s(row.free), median_s(row.plain)) if row.way.added else None,
            )
            for row in rows
        ),
    )


def categories(rows: tuple[Row, ...]) -> Table:
    """What the peak of each way is held for, as predicted."""
    names = (*CATEGORIES, OTHER)
    held = [(row, peak_categories(row.way.case)) for row in rows]
    return Table(
        title="What the peak memory is held for: predicted",
        columns=(
            *SIZE_COLUMNS,
            Column(name="precision and levers"),
            Column(name="peak lies in"),
            Column(name="predicted peak", unit="bytes"),
            *(Column(name=name, unit="bytes") for name in names),
        ),
        rows=tuple(
            (
                *size_cells(row.way.case),
                row.way.name,
                peak_phase(row.way.case),
                predicted_peak(row.way.case),
                *(None if of is None else of[name] for name in names),
            )
            for row, of in held
        ),
        note="By the closed form; the measured peaks are in the table before. Pure bf16 keeps parameters, "
        "gradients and the optimizer's state in bf16; mixed precision keeps them in fp32 and holds casts "
        "of the weights beside them.",
    )


def speedup_plot(cells: tuple[Cell, ...]) -> Plot:
    """Speed over fp32 by size, at the longest sequence."""
    longest = max((cell.case.workload.seq_len for cell in cells), default=0)
    shown = [
        (cell, factor)
        for cell in cells
        if (factor := cell.speedup.factor) is not None
        and cell.case.configuration.precision != BASE
        and cell.case.workload.seq_len == longest
    ]
    return Plot(
        title=f"Speed over {BASE} by size, sequence {longest}",
        kind="lines",
        x_label="parameters",
        y_label=f"speed over {BASE}",
        x_unit="count",
        y_unit="ratio",
        log_x=True,
        series=series(
            (
                f"{cell.case.configuration.precision}, {cell.case.workload.pass_}",
                Point(x=n_parameters(cell.case.model), y=factor, label=cell.case.model.name),
            )
            for cell, factor in shown
        ),
    )


def time_plot(cells: tuple[Cell, ...]) -> Plot:
    """Time of a train step by sequence length."""
    return Plot(
        title="Time of a train step by sequence length",
        kind="lines",
        x_label="sequence length",
        y_label="step time",
        x_unit="count",
        y_unit="s",
        log_x=True,
        log_y=True,
        series=series(
            (
                f"{cell.case.model.name}, {cell.case.configuration.precision}",
                point(cell.case.workload.seq_len, interval),
            )
            for cell in cells
            if (interval := time(cell.measurement)) is not None
            and cell.case.workload.pass_ == PASSES[-1]
        ),
    )
