"""A free grid of cases, measured and tabled."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from peakward.records.calibration import Calibration
from peakward.records.case import Case, ModelCase
from peakward.records.measurement import Measurement
from peakward.records.protocol import Protocol
from peakward.records.study import Cell, Column, Conclusion, Study, Table
from peakward.report.cases import label, settings
from peakward.studies.cases import SIZE_COLUMNS, place, size_cells
from peakward.studies.execute import carry_out
from peakward.studies.parts import Parts, evidence, say
from peakward.studies.readings import (
    Planned,
    Readings,
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
    fastest, slowest = min(group, key=lambda each: each[2]), max(group, key=lambda each: each[2])
    everything = [measurement for _, measurement, _ in group]
    return say(
        "{place}: of {n} configurations {fast} is fastest, at {factor} the speed of {slow}.",
        place=place(fastest[0]),
        n=evidence("configurations", len(group), "count", *everything),
        fast=", ".join(settings(fastest[0])),
        factor=evidence(
            "fastest over slowest", slowest[2] / fastest[2], "ratio", slowest[1], fastest[1]
        ),
        slow=", ".join(settings(slowest[0])),
    )
