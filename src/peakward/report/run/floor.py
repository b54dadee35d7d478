"""The predicted floor, the measured step, and the floor's share of the step."""

from peakward.records.measurement import Measurement
from peakward.records.prediction import PhaseFloor, Prediction
from peakward.records.study import Cell, Column, Study, Table
from peakward.report.cases import settings
from peakward.report.columns import spread_column
from peakward.report.document import Fact, Facts
from peakward.report.format import format_cell, format_spread
from peakward.report.reasons import brief
from peakward.report.run.efficiency import (
    compulsory_bytes,
    measured_matmul_rate,
    model_flops,
    quotient,
)
from peakward.report.run.investigation import Investigation, Point
from peakward.report.run.summary import status

COLUMNS = (
    Column(name="phase"),
    Column(name="FLOPs", unit="flops"),
    Column(name="traffic", unit="bytes"),
    Column(name="floor", unit="s"),
    Column(name="bound"),
    spread_column("measured"),
    Column(name="share of floor", unit="share"),
)


def phase_table(point: Point) -> Table | None:
    """Floor and measurement by phase, then for the step; None where no floor was computed."""
    if point.prediction is None:
        return None
    rows = [_phase_row(phase, point.measurement) for phase in point.prediction.phases]
    rows.append(_step_row(point, point.prediction))
    return Table(
        title=f"{point.name.capitalize()}: {', '.join(settings(point.case))}",
        columns=COLUMNS,
        rows=tuple(rows),
        note=_note(point, rows),
    )


def ceilings(study: Study, read: Investigation) -> Facts:
    """The rates behind floors and shares, each with its source."""
    facts: dict[str, str] = {}
    for point in read.points:
        if point.prediction is not None:
            facts |= _rates(point.prediction, study)
    return Facts(facts=tuple(Fact(name=name, value=value) for name, value in facts.items()))


def _phase_row(floor: PhaseFloor, measurement: Measurement | None) -> tuple[Cell, ...]:
    times = {time.phase: time.median_s for time in measurement.phases} if measurement else {}
    measured = times.get(floor.phase)
    return (
        floor.phase,
        floor.flops,
        floor.bytes,
        floor.floor_s,
        floor.bound,
        None if measured is None else format_cell(measured, "s"),
        quotient(floor.floor_s, measured),
    )


def _step_row(point: Point, prediction: Prediction) -> tuple[Cell, ...]:
    measurement = point.measurement
    summary = measurement.summary if measurement else None
    return (
        "step",
        model_flops(prediction),
        compulsory_bytes(prediction),
        prediction.floor_s,
        None,
        format_spread(summary.median_s, "s") if summary else status(measurement),
        quotient(prediction.floor_s, point.step_s),
    )


def _note(point: Point, rows: list[tuple[Cell, ...]]) -> str:
    parts = ["The floor was computed before the measurement."]
    if point.measurement is not None and point.measurement.reason is not None:
        parts.append(
            f"The {point.name} ended as {point.measurement.status}: {brief(point.measurement.reason)}."
        )
    if point.measurement is not None and point.measurement.phases:
        parts.append("Phases are timed in steps of their own, so they need not add up to the step.")
    faster = [str(row[0]) for row in rows if isinstance(row[-1], float) and row[-1] > 1]
    if faster:
        parts.append(
            f"Faster than its floor: {', '.join(faster)}. A floor above the time means that the step ran "
            "at a higher rate than the ceilings below, which are those that calibration reached."
        )
    return " ".join(parts)


def _rates(prediction: Prediction, study: Study) -> dict[str, str]:
    kind = prediction.compute_type
    where = "from the datasheet" if prediction.source == "datasheet" else "measured here"
    facts = {f"{kind} matmul": "unknown on this device"}
    if prediction.matmul_flops_per_s is not None:
        rate = format_cell(prediction.matmul_flops_per_s, "flops_per_s")
        facts[f"{kind} matmul"] = f"{rate}, {where}{_size(prediction, study)}"
    facts["memory"] = f"{format_cell(prediction.bytes_per_s, 'bytes_per_s')}, {where}"
    if prediction.peak_flops_per_s is not None:
        peak = format_cell(prediction.peak_flops_per_s, "flops_per_s")
        facts[f"{kind} dense peak"] = f"{peak}, from the datasheet of {prediction.device}"
    return facts


def _size(prediction: Prediction, study: Study) -> str:
    rates = study.calibration.matmul if study.calibration else ()
    sizes = [
        rate.size
        for rate in rates
        if rate.compute_type == prediction.compute_type
        and rate.flops_per_s == measured_matmul_rate(prediction)
    ]
    return f" at {sizes[0]:,}³" if sizes else ""
