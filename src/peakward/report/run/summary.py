"""Baseline and best side by side: speed, statistics, the device's sensors."""

from peakward.records.measurement import Interval, Measurement
from peakward.records.study import Cell, Column, Table
from peakward.report.columns import spread_column
from peakward.report.format import format_cell, format_spread
from peakward.report.reasons import brief
from peakward.report.run.efficiency import efficiency
from peakward.report.run.investigation import Investigation, Point


def speed_table(read: Investigation) -> Table:
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


def statistics_table(read: Investigation) -> Table:
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


def telemetry_table(read: Investigation) -> Table | None:
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


def compile_table(read: Investigation) -> Table | None:
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


def peak_bytes(measurement: Measurement | None) -> int | None:
    """Peak allocated memory, where the case ran."""
    memory = measurement.memory if measurement else None
    return memory.peak_allocated_bytes if memory else None


def named_peak(point: Point) -> str | None:
    """The peak that the point's MFU refers to: "989 TFLOP/s bf16"."""
    prediction = point.prediction
    if prediction is None or prediction.peak_flops_per_s is None:
        return None
    return f"{format_cell(prediction.peak_flops_per_s, 'flops_per_s')} {prediction.compute_type}"


def status(measurement: Measurement | None) -> str:
    """Why there is no time: the case's status, or that it was not measured."""
    return measurement.status if measurement else "not measured"


def _speed_row(point: Point) -> tuple[Cell, ...]:
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


def _note(read: Investigation) -> str | None:
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


def _ceiling(point: Point) -> str:
    rate = point.prediction.matmul_flops_per_s if point.prediction else None
    return format_cell(rate, "flops_per_s")


def _statistics_row(point: Point) -> tuple[Cell, ...]:
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


def _telemetry_row(point: Point) -> tuple[Cell, ...] | None:
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
