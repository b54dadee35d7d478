"""A free grid of cases, measured and tabled."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from peakward.records.calibration import Calibration
from peakward.records.case import Case, ConfiguredCase, ModelCase
from peakward.records.measurement import Measurement, Protocol
from peakward.records.study import Cell, Column, Conclusion, Study, Table
from peakward.report.cases import label, parts, settings
from peakward.report.columns import spread_column
from peakward.report.format import format_cell, format_spread
from peakward.studies.cases import SIZE_COLUMNS, place, size_cells
from peakward.studies.execute import carry_out
from peakward.studies.parts import Parts, evidence, say
from peakward.studies.readings import (
    Planned,
    Readings,
    flops_per_s,
    peak_bytes,
    processes,
    status,
    time,
    tokens_per_s,
    verdict,
)
from peakward.studies.rivals import Ranking, Rival, rank

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
        title="1 measurement" if len(plan) == 1 else f"{len(plan)} measurements",
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


SETTINGS = (
    "precision",
    "attention",
    "compile",
    "CUDA graphs",
    "optimizer",
    "checkpointing",
    "loss",
    "own kernels",
    "weights",
    "memory limit",
    "warm-up steps",
)
"""What may tell one row from another beside its size."""


def table(plan: Sequence[Planned], readings: Readings) -> Table:
    """One row a measurement, in the order of the plan; settings that never vary go to the note."""
    told = [_setting_cells(each) for each in plan]
    found = [readings.find(each) for each in plan]
    troubles = [_troubles(each) for each in found]
    strange = any(each is not None for each in troubles)
    varying = [i for i, _ in enumerate(SETTINGS) if len({cells[i] for cells in told}) > 1]
    return Table(
        title="Measurements",
        columns=(
            *SIZE_COLUMNS,
            *(Column(name=SETTINGS[i]) for i in varying),
            Column(name="status"),
            *((Column(name="output"),) if strange else ()),
            spread_column("median"),
            Column(name="mean", unit="s"),
            Column(name="standard deviation", unit="s"),
            Column(name="throughput", unit="tokens_per_s"),
            Column(name="model FLOP/s", unit="flops_per_s"),
            Column(name="peak memory", unit="bytes"),
            Column(name="verdict"),
        ),
        rows=tuple(
            (
                *_size(case),
                *(cells[i] for i in varying),
                status(made),
                *((trouble,) if strange else ()),
                *_row(made),
            )
            for (case, _), cells, made, trouble in zip(plan, told, found, troubles, strict=True)
        ),
        note=_constant(told, varying),
    )


def _constant(told: Sequence[tuple[str | None, ...]], varying: Sequence[int]) -> str | None:
    same = [
        f"{name} {told[0][i]}"
        for i, name in enumerate(SETTINGS)
        if told and i not in varying and told[0][i] is not None
    ]
    return f"In every row: {', '.join(same)}." if same else None


def _setting_cells(planned: Planned) -> tuple[str | None, ...]:
    """Text, for they name the row."""
    case, protocol = planned
    steps = protocol.warmup_steps
    warmup = "until steady" if steps is None else str(steps)
    limit = getattr(case, "memory_limit_bytes", None)
    conditions = (None if limit is None else format_cell(limit, "bytes"), warmup)
    if not isinstance(case, ConfiguredCase):
        return (*(None,) * 9, *conditions)
    how = case.configuration
    other = parts(how)
    loss, weights = other.pop("loss", None), other.pop("weights", None)
    scope = " of the whole model" if how.compile != "none" and how.compile_scope == "model" else ""
    return (
        how.precision,
        how.attention,
        f"{how.compile}{scope}",
        "yes" if how.cuda_graphs else "no",
        how.optimizer if case.workload.pass_ == "train_step" else None,
        how.checkpointing,
        loss,
        ", ".join(part if value == "fused" else f"{value} {part}" for part, value in other.items())
        or None,
        weights,
        *conditions,
    )


def _size(case: Case) -> tuple[Cell, ...]:
    return size_cells(case) if isinstance(case, ConfiguredCase) else (label(case), None)


def _row(measurement: Measurement | None) -> tuple[Cell, ...]:
    return (
        *_time_cells(measurement),
        tokens_per_s(measurement),
        flops_per_s(measurement),
        peak_bytes(measurement),
        verdict(measurement),
    )


def _troubles(measurement: Measurement | None) -> str | None:
    """What the outputs tell beside the times."""
    if measurement is None or measurement.outputs is None:
        return None
    return "; ".join(measurement.outputs.troubles) or None


def _time_cells(measurement: Measurement | None) -> tuple[Cell, ...]:
    interval = time(measurement)
    if interval is None or measurement is None or measurement.summary is None:
        return (None,) * 3
    summary = measurement.summary
    return (format_spread(interval, "s"), summary.mean_s, summary.sd_s)


def compare(plan: Sequence[Planned], readings: Readings) -> tuple[Conclusion, ...]:
    """For each model and workload that was to run in several configurations, the fastest and the slowest."""
    groups: dict[object, list[tuple[ConfiguredCase, Rival]]] = {}
    for case, protocol in plan:
        if isinstance(case, ConfiguredCase):
            rival = Rival(
                name=" ".join(settings(case)), measurement=readings.find((case, protocol))
            )
            group = (_model(case), case.workload, case.memory_limit_bytes, protocol)
            groups.setdefault(group, []).append((case, rival))
    return tuple(
        _compare(group[0][0], ranking)
        for group in groups.values()
        if len((ranking := rank(rival for _, rival in group)).timed) > 1
    )


def _model(case: ConfiguredCase) -> object:
    return case.model if isinstance(case, ModelCase) else (case.source, case.fingerprint)


def _compare(case: ConfiguredCase, ranking: Ranking) -> Conclusion:
    """A winner only where its interval lies apart from that of the next."""
    fastest, slowest = ranking.timed[0], ranking.timed[-1]
    first, last = fastest.measurement, slowest.measurement
    assert first is not None and last is not None
    assert fastest.time is not None and slowest.time is not None
    where = ", ".join((place(case), *_conditions(first)))
    n = evidence(
        "configurations", len(ranking.timed), "count", *(each.measurement for each in ranking.timed)
    )
    if slowest in ranking.near:
        return say(
            "{place}: none of {n} configurations is measurably faster than another{absent}.",
            place=where,
            n=n,
            absent=ranking.absent,
        )
    return say(
        "{place}: of {n} configurations {fast} is {rank}, at {factor} the speed of {slow}, by intervals"
        "{processes}{absent}.",
        place=where,
        n=n,
        fast=", ".join(_settings(first)),
        rank="among the fastest" if ranking.near else ranking.title,
        factor=evidence(
            "fastest over slowest",
            slowest.time.estimate / fastest.time.estimate,
            "ratio",
            last,
            first,
        ),
        slow=", ".join(_settings(last)),
        processes=processes(first, last),
        absent=ranking.absent,
    )


def _settings(measured: Measurement) -> tuple[str, ...]:
    assert isinstance(measured.case, ConfiguredCase)
    return settings(measured.case)


def _conditions(measured: Measurement) -> tuple[str, ...]:
    """What tells groups of one place from each other: the warm-up, and the memory limit."""
    steps = measured.protocol.warmup_steps
    warmup = (
        "warm-up until steady"
        if steps is None
        else f"{steps} warm-up step{'' if steps == 1 else 's'}"
    )
    limit = getattr(measured.case, "memory_limit_bytes", None)
    return (warmup,) if limit is None else (warmup, f"at most {format_cell(limit, 'bytes')}")
