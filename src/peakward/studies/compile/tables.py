"""The tables and the plot of `compile`."""

import math

from peakward.prediction.parameters import n_parameters
from peakward.records.measurement import CompileReport
from peakward.records.study import Cell as Value
from peakward.records.study import Column, Plot, Point, Table
from peakward.studies.compile import grid, shapes
from peakward.studies.drawing import series
from peakward.studies.readings import (
    peak_bytes,
    status,
    step_s,
    time,
    tokens_per_s,
    verdict,
)
from peakward.studies.speedup import Speedup

SUBJECT_COLUMNS = (Column(name="model"), Column(name="subject"), Column(name="mode"))
NEVER = "never"


def speeds(cells: tuple[grid.Cell, ...]) -> Table:
    """Times by mode, and when compiling pays."""
    return Table(
        title="Eager against torch.compile",
        columns=(
            *SUBJECT_COLUMNS,
            Column(name="status"),
            *(Column(name=name, unit="s") for name in ("median", "from", "to")),
            Column(name="speed over eager", unit="ratio"),
            Column(name="speed over fp32 eager", unit="ratio"),
            Column(name="compile time", unit="s"),
            Column(name="pays back after steps", unit="count"),
            Column(name="peak memory", unit="bytes"),
            Column(name="verdict"),
        ),
        rows=tuple(_speed_row(cell) for cell in cells),
        note="Compile time is the warm-up beyond what as many steady steps take, in a process that has "
        "compiled nothing before. It pays back after compile time over time saved a step.",
    )


def _speed_row(cell: grid.Cell) -> tuple[Value, ...]:
    interval = time(cell.measurement)
    ends = (interval.estimate, interval.low, interval.high) if interval else (None,) * 3
    return (
        cell.shape.name,
        cell.subject,
        cell.mode.name,
        status(cell.measurement),
        *ends,
        cell.speedup.factor,
        Speedup(base=cell.baseline, candidate=cell.measurement).factor,
        cell.report and cell.report.compile_s,
        _steps(cell.payback_steps),
        peak_bytes(cell.measurement),
        verdict(cell.measurement),
    )


def _steps(steps: float | None) -> Value:
    if steps is None:
        return None
    return math.ceil(steps) if math.isfinite(steps) else NEVER


def graphs(cells: tuple[grid.Cell, ...]) -> Table:
    """What torch.compile captured, and where it broke off or began again."""
    return Table(
        title="Graphs, breaks and recompilations",
        columns=(*SUBJECT_COLUMNS, *GRAPH_COLUMNS),
        rows=tuple(
            (cell.shape.name, cell.subject, cell.mode.name, *_graph_cells(cell.report))
            for cell in cells
            if cell.report is not None
        ),
    )


GRAPH_COLUMNS = (
    Column(name="graphs", unit="count"),
    Column(name="graph breaks", unit="count"),
    Column(name="recompilations", unit="count"),
    Column(name="from disk cache", unit="count"),
    Column(name="reasons"),
)


def _graph_cells(report: CompileReport | None) -> tuple[Value, ...]:
    if report is None:
        return (None,) * len(GRAPH_COLUMNS)
    reasons = "; ".join(report.reasons) or None
    counts = (report.n_graphs, report.n_graph_breaks, report.n_recompiles, report.n_cached_graphs)
    return (*counts, reasons)


def changing(cells: tuple[shapes.Cell, ...]) -> Table:
    """Throughput under changing lengths, padded or not."""
    lengths = cells[0].case.workload.varying_seq_lens if cells else ()
    plain = next(
        (each for each in cells if (each.engine, each.lengths) == ("eager", "changing")), None
    )
    return Table(
        title="Changing sequence lengths against padding",
        columns=(
            Column(name="engine"),
            Column(name="lengths"),
            Column(name="status"),
            Column(name="mean step", unit="s"),
            Column(name="throughput", unit="tokens_per_s"),
            Column(name="start", unit="s"),
            Column(name="pays back after steps", unit="count"),
            *GRAPH_COLUMNS,
            Column(name="peak memory", unit="bytes"),
        ),
        rows=tuple(
            (
                cell.engine,
                cell.lengths,
                status(cell.measurement),
                step_s(cell.measurement),
                tokens_per_s(cell.measurement),
                cell.start_s,
                _paid(cell, plain),
                *_graph_cells(cell.report),
                peak_bytes(cell.measurement),
            )
            for cell in cells
        ),
        note=f"Steps go through the lengths {', '.join(map(str, lengths))}. Padding tokens are not "
        "counted as throughput. The start is the warm-up of a fresh process beyond what as many steady "
        "steps take, compilations and captures included; it pays back beside eager steps of changing "
        "lengths, whose own start is taken off.",
    )


def _paid(cell: shapes.Cell, plain: shapes.Cell | None) -> Value:
    """Beside eager steps of changing lengths; nothing of what neither compiles nor captures."""
    steps = shapes.steps_to_pay(cell, plain) if plain is not None and cell.compiles else None
    return _steps(steps)


def plot(cells: tuple[grid.Cell, ...]) -> Plot:
    """Speed over eager by size, a line for each subject and mode."""
    return Plot(
        title="Speed over eager by size",
        kind="lines",
        x_label="parameters",
        y_label="speed over eager in the same precision",
        x_unit="count",
        y_unit="ratio",
        log_x=True,
        series=series(
            (
                f"{cell.subject}, {cell.mode.name}",
                Point(x=n_parameters(cell.shape), y=factor, label=cell.shape.name),
            )
            for cell in cells
            if cell.mode.compile != "none" and (factor := cell.speedup.factor) is not None
        ),
    )
