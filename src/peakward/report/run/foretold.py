"""Predictions beside measurements: the step, its memory, and its work part by part."""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from peakward.records.plan import Forecast
from peakward.records.prediction import OperatorTime, StepTime
from peakward.records.profile import CaseProfile, OperatorRate
from peakward.records.study import Cell, Column, Study, Table, Unit
from peakward.report import plan_tables
from peakward.report.document import Block, Note, Section, TableBlock
from peakward.report.format import MINUS, format_cell, format_spread
from peakward.report.run.investigation import KnownConfiguration, RunParts

LEAST_SHARE = 0.005
"""Parts below this share of the step's device time are left out of the table."""
LEAST_RESIDUAL = 0.001
NS = 1e-9

_COLUMNS = (
    Column(name="phase", unit="name"),
    Column(name="part", unit="name"),
    Column(name="predicted", unit="s"),
    Column(name="profiled", unit="s"),
    Column(name="residual"),
)


class Told(NamedTuple):
    """A configuration with its earlier prediction, and its profile where there is one."""

    point: KnownConfiguration
    forecast: Forecast
    profile: CaseProfile | None


def section(study: Study, read: RunParts) -> Section:
    """The predictions beside the measurements; empty where only floors were predicted."""
    forecasts = {each.case: each for each in study.forecasts}
    profiles = {each.case: each for each in study.profiles}
    told = [
        Told(point, forecasts[point.case], profiles.get(point.case))
        for point in read.points
        if point.case in forecasts
    ]
    if not told:
        return Section(title="Predicted and measured", blocks=())
    blocks: list[Block] = [TableBlock(table=_whole(told))]
    for each in told:
        if each.forecast.time is not None and each.profile is not None:
            name = each.point.name.capitalize()
            tables = (
                _parts(name, each.forecast.time, each.profile),
                _operators(name, each.forecast.time, each.profile),
            )
            blocks += [TableBlock(table=table) for table in tables if table.rows]
    blocks += [
        Note(text=f"{each.point.name.capitalize()}, {gap.figure} not predicted: {gap.reason}.")
        for each in told
        for gap in each.forecast.absent
        if gap.figure in ("step time", "memory")
    ]
    return Section(title="Predicted and measured", blocks=tuple(blocks))


def _whole(told: Iterable[Told]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for point, forecast, _ in told:
        measurement = point.measurement
        summary = measurement.summary if measurement else None
        use = measurement.memory if measurement else None
        step = forecast.step_s
        rows += _row(
            (point.name, "step"),
            None if step is None else format_spread(step, "s"),
            None if step is None else step.estimate,
            None if summary is None else summary.median_s.estimate,
            "s",
        )
        memory = forecast.memory
        uncompiled = memory is not None and memory.basis == "eager step"
        rows += _row(
            (point.name, "peak memory, uncompiled" if uncompiled else "peak memory"),
            None if memory is None else format_cell(memory.peak_bytes, "bytes"),
            None if memory is None else memory.peak_bytes,
            None if use is None else use.peak_allocated_bytes,
            "bytes",
        )
    return Table(
        title="The step",
        columns=(
            Column(name="configuration", unit="name"),
            Column(name="figure", unit="name"),
            Column(name="predicted (90% interval)"),
            Column(name="measured"),
            Column(name="residual"),
        ),
        rows=tuple(rows),
        note=" ".join(
            filter(None, (_ABOUT, plan_tables.guessed_kernels(f.time for _, f, _ in told)))
        ),
    )


_ABOUT = (
    "Predictions come from shapes and the device's rates; the baseline's was made before it "
    "ran. Residual: measured over predicted, minus 1."
)


def _row(
    names: tuple[str, str],
    predicted: str | None,
    estimate: float | None,
    measured: float | None,
    unit: Unit,
) -> list[tuple[Cell, ...]]:
    if estimate is None or measured is None:
        return []
    return [(*names, predicted, format_cell(measured, unit), residual(estimate, measured))]


def residual(predicted: float, measured: float) -> str:
    """The relative difference of the measured from the predicted value."""
    more = measured / predicted - 1
    sign = "" if abs(more) < LEAST_RESIDUAL else "+" if more > 0 else MINUS
    return sign + format_cell(abs(more), "share")


def _parts(name: str, time: StepTime, profile: CaseProfile) -> Table:
    """The device's work by phase and category."""
    predicted = _predicted_s(time.operators)
    profiled: dict[tuple[str, str], float] = defaultdict(float)
    for group in profile.profile.categories:
        if group.phase is not None and group.category is not None:
            key = (group.phase, _COARSE.get(group.category, group.category))
            profiled[key] += group.total_ns * NS / profile.n_steps
    least_s = LEAST_SHARE * time.device_s
    keys = [
        key
        for key in dict.fromkeys((*predicted, *profiled))
        if max(predicted.get(key, 0.0), profiled.get(key, 0.0)) > least_s
    ]
    return Table(
        title=f"{name}: work on the device in a step",
        columns=_COLUMNS,
        rows=tuple(_part_row(key, predicted.get(key), profiled.get(key)) for key in keys),
        note="Predicted times run from one launch to the next; profiled times are of the kernels "
        "alone. The product in softmax's gradient is profiled as elementwise.",
    )


def _operators(name: str, time: StepTime, profile: CaseProfile) -> Table:
    """The operators with the same name in prediction and trace. Operators without recorded shapes are left
    out."""
    predicted: dict[str, list[OperatorTime]] = defaultdict(list)
    for each in time.operators:
        predicted[each.name.removeprefix("aten.").replace(".", "::")].append(each)
    profiled: dict[str, list[OperatorRate]] = defaultdict(list)
    for rate in profile.profile.operators:
        profiled[rate.name.removeprefix("aten::")].append(rate)
    rows = []
    for operator in (each for each in predicted if each in profiled):
        before_s = sum(each.device_s for each in predicted[operator])
        after_s = sum(each.kernel_ns for each in profiled[operator]) * NS / profile.n_steps
        n_before = sum(each.n_calls for each in predicted[operator])
        n_after = sum(each.n for each in profiled[operator]) / profile.n_steps
        if max(before_s, after_s) > LEAST_SHARE * time.device_s and n_before == n_after:
            rows.append((operator, n_before, before_s, after_s, residual(before_s, after_s)))
    return Table(
        title=f"{name}: operators",
        columns=(
            Column(name="operator", unit="name"),
            Column(name="calls", unit="count"),
            *_COLUMNS[2:],
        ),
        rows=tuple(rows),
    )


_COARSE = {"memory": "elementwise", "copy": "elementwise", "reduction": "elementwise"}
"""Categories that count together. The operator's name and the kernel's name tell fills, copies and additions
apart differently."""


def _predicted_s(operators: Iterable[OperatorTime]) -> dict[tuple[str, str], float]:
    sums: dict[tuple[str, str], float] = defaultdict(float)
    for each in operators:
        sums[each.phase, _COARSE.get(each.category, each.category)] += each.device_s
    return sums


def _part_row(
    key: tuple[str, str], predicted: float | None, profiled: float | None
) -> tuple[Cell, ...]:
    phase, category = key
    name = "elementwise and copies" if category == "elementwise" else category
    known = predicted is not None and profiled is not None
    return (
        phase,
        name,
        predicted,
        profiled,
        residual(predicted, profiled) if known and predicted and profiled else None,
    )
