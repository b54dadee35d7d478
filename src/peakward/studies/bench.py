"""A free grid of cases, measured and tabled."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from peakward.records.calibration import Calibration
from peakward.records.case import Case, ModelCase
from peakward.records.measurement import Measurement
from peakward.records.protocol import Protocol
from peakward.records.study import Cell, Column, Conclusion, Study, Table
from peakward.report.cases import label, settings
from peakward.report.format import format_cell
from peakward.studies.cases import SIZE_COLUMNS, place, size_cells
from peakward.studies.execute import carry_out
from peakward.studies.parts import Parts, evidence, say
from peakward.studies.readings import (
    Planned,
    Readings,
    distinct,
    flops_per_s,
    median_s,
    peak_bytes,
    status,
    time,
    tokens_per_s,
    verdict,
)

if TYPE_CHECKING:
    from peakward.lab.measure.sweep import Sweep


def bench(
    lab: "Sweep",
    cases: Sequence[Case],
    protocols: Sequence[Protocol],
    *,
    command: str,
    calibration: Calibration | None = None,
    notes: Sequence[str] = (),
) -> Study:
    """Measure every case by every protocol, and store what came of it as a study.

    A case that ends otherwise than `ok` keeps its row, and a Ctrl-C leaves a study with
    `complete=False`, as in `execute`. `notes` are the caller's own: what was not planned, and why.
    """
    plan = planned(cases, protocols)
    return carry_out(
        lab,
        name="bench",
        title=f"{len(plan)} measurements",
        command=command,
        calibration=calibration,
        gather=lambda recorder: recorder.measure_all(plan),
        tell=lambda readings: Parts(
            tables=(table(plan, readings),),
            conclusions=compare(plan, readings),
            notes=tuple(notes),
        ),
    )


def planned(cases: Sequence[Case], protocols: Sequence[Protocol]) -> tuple[Planned, ...]:
    """Each case by each protocol, each once."""
    return tuple(dict.fromkeys((case, protocol) for case in cases for protocol in protocols))


def table(plan: Sequence[Planned], readings: Readings) -> Table:
    """One row a measurement, in the order of the plan."""
    return Table(
        title="Measurements",
        columns=(
            *SIZE_COLUMNS,
            Column(name="configuration"),
            Column(name="memory limit", unit="bytes"),
            Column(name="warm-up steps", unit="count"),
            Column(name="status"),
            *(Column(name=name, unit="s") for name in ("median", "from", "to", "mean")),
            Column(name="standard deviation", unit="s"),
            Column(name="throughput", unit="tokens_per_s"),
            Column(name="model FLOP/s", unit="flops_per_s"),
            Column(name="peak memory", unit="bytes"),
            Column(name="verdict"),
        ),
        rows=tuple(_row(each, readings.find(each)) for each in plan),
    )


def _row(planned: Planned, measurement: Measurement | None) -> tuple[Cell, ...]:
    case, protocol = planned
    warmup = "until steady" if protocol.warmup_steps is None else protocol.warmup_steps
    return (
        *_case_cells(case),
        warmup,
        status(measurement),
        *_time_cells(measurement),
        tokens_per_s(measurement),
        flops_per_s(measurement),
        peak_bytes(measurement),
        verdict(measurement),
    )


def _case_cells(case: Case) -> tuple[Cell, ...]:
    if not isinstance(case, ModelCase):
        return (label(case), None, None, getattr(case, "memory_limit_bytes", None))
    return (*size_cells(case), ", ".join(settings(case)), case.memory_limit_bytes)


def _time_cells(measurement: Measurement | None) -> tuple[float | None, ...]:
    interval = time(measurement)
    if interval is None or measurement is None or measurement.summary is None:
        return (None,) * 5
    summary = measurement.summary
    return (interval.estimate, interval.low, interval.high, summary.mean_s, summary.sd_s)


def compare(plan: Sequence[Planned], readings: Readings) -> tuple[Conclusion, ...]:
    """For each model and workload that ran in several configurations, the fastest and the slowest."""
    groups: dict[object, list[tuple[ModelCase, Measurement, float]]] = {}
    for case, protocol in plan:
        found = readings.find((case, protocol))
        step_s = median_s(found)
        if isinstance(case, ModelCase) and found is not None and step_s is not None:
            group = (case.model, case.workload, case.memory_limit_bytes, protocol)
            groups.setdefault(group, []).append((case, found, step_s))
    return tuple(_compare(group) for group in groups.values() if len(group) > 1)


def _compare(group: list[tuple[ModelCase, Measurement, float]]) -> Conclusion:
    """A winner only where its interval lies apart from that of the next."""
    ranked = sorted(group, key=lambda each: each[2])
    fastest, second, slowest = ranked[0], ranked[1], ranked[-1]
    where = ", ".join((place(fastest[0]), *_conditions(fastest[1])))
    n = evidence("configurations", len(group), "count", *(measured for _, measured, _ in group))
    if not _apart(fastest[1], slowest[1]):
        text = "{place}: none of {n} configurations is measurably faster than another."
        return say(text, place=where, n=n)
    rank = "fastest" if _apart(fastest[1], second[1]) else "among the fastest"
    return say(
        "{place}: of {n} configurations {fast} is {rank}, at {factor} the speed of {slow}.",
        place=where,
        n=n,
        fast=", ".join(settings(fastest[0])),
        rank=rank,
        factor=evidence(
            "fastest over slowest", slowest[2] / fastest[2], "ratio", slowest[1], fastest[1]
        ),
        slow=", ".join(settings(slowest[0])),
    )


def _apart(first: Measurement, second: Measurement) -> bool:
    times = time(first), time(second)
    return times[0] is not None and times[1] is not None and distinct(times[0], times[1])


def _conditions(measured: Measurement) -> tuple[str, ...]:
    """What tells groups of one place from each other: the warm-up, and the memory limit."""
    steps = measured.protocol.warmup_steps
    warmup = "warm-up until steady" if steps is None else f"{steps} warm-up steps"
    limit = getattr(measured.case, "memory_limit_bytes", None)
    return (warmup,) if limit is None else (warmup, f"at most {format_cell(limit, 'bytes')}")
