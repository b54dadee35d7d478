"""Baseline and best side by side: large figures, speed, statistics, sensors, and the floor's share."""

from peakward.records.linear_layers import LinearChoice
from peakward.records.measurement import Interval, Measurement
from peakward.records.prediction import PhaseFloor, Prediction
from peakward.records.study import Cell, Column, Study, Table, Unit
from peakward.report.cases import brief, settings
from peakward.report.columns import spread_column
from peakward.report.document import Fact, Facts, Figure
from peakward.report.format import (
    format_beside,
    format_cell,
    format_estimate,
    format_interval,
    format_spread,
)
from peakward.report.run.investigation import (
    KnownConfiguration,
    RunParts,
    compulsory_bytes,
    efficiency,
    measured_matmul_rate,
    model_flops,
    quotient,
)

SHARES_OF_A_RATE = ("MFU", "ceiling share", "share of floor")
"""These shares compare two configurations only in the same compute type: 46% of 67 TFLOP/s in fp32 is less
than 30% of 989 in bf16."""


def figures(read: RunParts) -> tuple[Figure, ...]:
    """The speed-up, then the best configuration's figures beside the baseline's."""
    before, after = _values(read.baseline), _values(read.points[-1])
    found = [_speedup(read)]
    for name, (cell, unit) in after.items():
        value, old = _in_one_unit(cell, before[name][0] if read.best else None, unit)
        if name in SHARES_OF_A_RATE and not _same_compute_type(read):
            detail = named_peak(read.points[-1]) if name == "MFU" else None
            found.append(_figure(name, value, None if detail is None else f"of {detail}", unit))
        else:
            found.append(_figure(name, value, _beside(old, unit), unit))
    return tuple(figure for figure in found if figure is not None)


def _values(point: KnownConfiguration) -> dict[str, tuple[Cell, Unit]]:
    known = efficiency(point)
    return {
        "step": (known.step_s, "s"),
        "throughput": (known.tokens_per_s, "tokens_per_s"),
        "MFU": (known.mfu, "share"),
        # Without a datasheet the measured ceiling takes its place.
        "ceiling share": (known.ceiling_share if known.mfu is None else None, "share"),
        "share of floor": (known.floor_share, "share"),
        "peak memory": (peak_bytes(point.measurement), "bytes"),
    }


def _in_one_unit(value: Cell, old: Cell, unit: Unit) -> tuple[Cell, Cell]:
    """Two sizes as text in one unit, as in a column; other values unchanged."""
    if unit != "bytes" or not isinstance(value, int) or not isinstance(old, int):
        return value, old
    largest = max(value, old)
    return format_beside(value, largest, unit), format_beside(old, largest, unit)


def _beside(old: Cell, unit: Unit) -> str | None:
    return None if old is None else f"baseline {format_cell(old, unit)}"


def _same_compute_type(read: RunParts) -> bool:
    return len({each.prediction.compute_type for each in read.points if each.prediction}) < 2


def _figure(name: str, value: Cell, detail: str | None, unit: Unit) -> Figure | None:
    if value is None:
        return None
    return Figure(name=name, value=format_cell(value, unit), detail=detail)


def _speedup(read: RunParts) -> Figure | None:
    speedup = read.speedup
    if speedup is None:
        return None
    value = format_cell(speedup.estimate, "ratio")
    detail = speedup.basis
    if speedup.interval is not None:
        value = format_estimate(speedup.interval, "ratio")
        detail = f"{format_interval(speedup.interval, 'ratio')}, {detail}"
    return Figure(name="speed-up", value=value, detail=detail)


def speed_table(read: RunParts) -> Table:
    """Time, rates, shares and memory of the baseline and of the best."""
    return Table(
        title="Baseline and best" if read.best else "Baseline",
        columns=(
            # "configuration" would be 5 characters wider than the names, and would split a terminal of 100.
            Column(name="case", unit="name"),
            Column(name="step", unit="s"),
            Column(name="tokens/s", unit="tokens_per_s"),
            Column(name="model FLOP/s", unit="flops_per_s"),
            Column(name="MFU", unit="share"),
            Column(name="of peak"),
            Column(name="ceiling share", unit="share"),
            Column(name="share of floor", unit="share"),
            Column(name="peak memory", unit="bytes"),
        ),
        rows=tuple(_speed_row(point) for point in read.points),
        note=_note(read),
    )


def statistics_table(read: RunParts) -> Table:
    """The basis of the medians, and their validity."""
    return Table(
        title="Step times",
        columns=(
            Column(name="configuration"),
            spread_column("median"),
            Column(name="mean", unit="s"),
            Column(name="sd", unit="s"),
            Column(name="min", unit="s"),
            Column(name="steps", unit="count"),
            Column(name="processes", unit="count"),
            Column(name="verdict"),
            Column(name="reasons"),
        ),
        rows=tuple(_statistics_row(point) for point in read.points),
    )


def telemetry_table(read: RunParts) -> Table | None:
    """The device's sensors over the timed steps, where it has any."""
    rows = [row for point in read.points if (row := _telemetry_row(point)) is not None]
    if not rows:
        return None
    return Table(
        title="Device while the steps were timed",
        columns=(
            Column(name="configuration"),
            Column(name="SM clock (MHz)"),
            Column(name="power (W)"),
            Column(name="temperature (°C)"),
            Column(name="energy a step", unit="j"),
            Column(name="throttled by"),
        ),
        rows=tuple(rows),
        note="Mean of the samples, lowest to highest.",
    )


def compile_table(read: RunParts) -> Table | None:
    """The time and graphs of torch.compile, where it was used."""
    reports = [
        (point.name, point.measurement.compile)
        for point in read.points
        if point.measurement is not None and point.measurement.compile is not None
    ]
    if not reports:
        return None
    return Table(
        title="torch.compile",
        columns=(
            Column(name="configuration"),
            Column(name="compile time", unit="s"),
            Column(name="graphs", unit="count"),
            Column(name="from cache", unit="count"),
            Column(name="graph breaks", unit="count"),
            Column(name="recompilations", unit="count"),
            Column(name="reasons"),
        ),
        rows=tuple(
            (
                name,
                report.compile_s,
                report.n_graphs,
                report.n_cached_graphs,
                report.n_graph_breaks,
                report.n_recompiles,
                "; ".join(report.reasons) or None,
            )
            for name, report in reports
        ),
    )


def linear_tables(read: RunParts) -> tuple[Table, ...]:
    """The linear layers that compute in fp8 and those that do not, where a module's were chosen."""
    return tuple(
        _linear_table(point.name, point.measurement.linear)
        for point in read.points
        if point.measurement is not None and point.measurement.linear is not None
    )


def _linear_table(name: str, choice: LinearChoice) -> Table:
    left = "".join(f" {each}." for each in choice.left)
    return Table(
        title=f"Linear layers in fp8, {name}",
        columns=(
            Column(name="tokens", unit="count"),
            Column(name="inputs", unit="count"),
            Column(name="outputs", unit="count"),
            Column(name="bias"),
            Column(name="bf16", unit="s"),
            Column(name="fp8", unit="s"),
            Column(name="layers", unit="count"),
            Column(name="taken", unit="count"),
        ),
        rows=tuple(
            (
                each.tokens,
                each.inputs,
                each.outputs,
                "yes" if each.bias else "no",
                each.plain_s,
                each.fp8_s,
                each.n_layers,
                each.n_taken,
            )
            for each in choice.layers
        ),
        note="One layer of each shape, forward and backward, by itself. A layer is taken where fp8 is faster "
        f"at all of its shapes; the others compute in bf16.{left}",
    )


def peak_bytes(measurement: Measurement | None) -> int | None:
    """Peak allocated memory, where the case ran."""
    memory = measurement.memory if measurement else None
    return memory.peak_allocated_bytes if memory else None


def named_peak(point: KnownConfiguration) -> str | None:
    """The peak that the point's MFU refers to: "989 TFLOP/s bf16"."""
    prediction = point.prediction
    if prediction is None or prediction.peak_flops_per_s is None:
        return None
    return f"{format_cell(prediction.peak_flops_per_s, 'flops_per_s')} {prediction.compute_type}"


def status(measurement: Measurement | None) -> str:
    """Why there is no time: the case's status, or that it was not measured."""
    return measurement.told if measurement else "not measured"


def _speed_row(point: KnownConfiguration) -> tuple[Cell, ...]:
    found = efficiency(point)
    return (
        point.name,
        status(point.measurement) if found.step_s is None else found.step_s,
        found.tokens_per_s,
        found.flops_per_s,
        found.mfu,
        None if found.mfu is None else named_peak(point),
        found.ceiling_share,
        found.floor_share,
        peak_bytes(point.measurement),
    )


def _note(read: RunParts) -> str | None:
    over = [
        (point, share)
        for point in read.points
        if (share := efficiency(point).ceiling_share) is not None and share > 1
    ]
    sentences = [
        f"The {point.name}'s ceiling share is above 100%: it ran at "
        f"{format_cell(share, 'ratio')} of {_ceiling(point)}, the best that calibration "
        "reached with a square product, so that rate is not this model's limit."
        for point, share in over
    ]
    return " ".join(sentences) or None


def _ceiling(point: KnownConfiguration) -> str:
    rate = point.prediction.matmul_flops_per_s if point.prediction else None
    return format_cell(rate, "flops_per_s")


def _statistics_row(point: KnownConfiguration) -> tuple[Cell, ...]:
    measurement = point.measurement
    summary = measurement.summary if measurement else None
    if measurement is None or summary is None:
        why = brief(measurement.reason) if measurement else None
        return (point.name, *(None,) * 6, status(measurement), why)
    validity = measurement.validity
    return (
        point.name,
        format_spread(summary.median_s, "s"),
        summary.mean_s,
        summary.sd_s,
        summary.min_s,
        summary.n,
        len(measurement.runs),
        validity.verdict if validity else None,
        "; ".join(validity.reasons) or None if validity else None,
    )


def _telemetry_row(point: KnownConfiguration) -> tuple[Cell, ...] | None:
    telemetry = point.measurement.telemetry if point.measurement else None
    if telemetry is None or telemetry.n_samples == 0:
        return None
    return (
        point.name,
        _samples(telemetry.sm_clock_mhz),
        _samples(telemetry.power_w),
        _samples(telemetry.temperature_c),
        telemetry.energy_per_step_j,
        ", ".join(telemetry.throttle_reasons) or "nothing",
    )


def _samples(interval: Interval | None) -> str | None:
    if interval is None:
        return None
    return f"{interval.estimate:,.0f} ({interval.low:,.0f}–{interval.high:,.0f})"


COLUMNS = (
    Column(name="phase"),
    Column(name="FLOPs", unit="flops"),
    Column(name="traffic", unit="bytes"),
    Column(name="floor", unit="s"),
    Column(name="bound"),
    spread_column("measured"),
    Column(name="share of floor", unit="share"),
)


def phase_table(point: KnownConfiguration) -> Table | None:
    """Floor and measurement by phase, then for the step; None where no floor was computed."""
    if point.prediction is None:
        return None
    rows = [_phase_row(phase, point.measurement) for phase in point.prediction.phases]
    rows.append(_step_row(point, point.prediction))
    return Table(
        title=f"{point.name.capitalize()}: {', '.join(settings(point.case))}",
        columns=COLUMNS,
        rows=tuple(rows),
        note=_floor_note(point, rows),
    )


def ceilings(study: Study, read: RunParts) -> Facts:
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


def _step_row(point: KnownConfiguration, prediction: Prediction) -> tuple[Cell, ...]:
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


def _floor_note(point: KnownConfiguration, rows: list[tuple[Cell, ...]]) -> str:
    parts = ["The floor was computed before the measurement."]
    if point.measurement is not None and point.measurement.reason is not None:
        parts.append(
            f"The {point.name} ended as {point.measurement.told}: {brief(point.measurement.reason)}."
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
