"""A free grid of cases, measured and tabled."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from peakward.records.calibration import Calibration
from peakward.records.case import Case, ConfiguredCase, ModelCase
from peakward.records.measurement import Measurement, Protocol
from peakward.records.study import Cell, Column, Conclusion, Study, Table
from peakward.report.cases import label, parts, settings, worded, workload
from peakward.report.columns import spread_column
from peakward.report.format import format_cell, format_spread
from peakward.studies.cases import place
from peakward.studies.claims import Ranking, Sentence, longer, rank, sources
from peakward.studies.engine import Parts, Point, Row
from peakward.studies.execute import carry_out
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
from peakward.studies.values import groups

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
    "other settings",
    "memory limit",
    "warm-up steps",
)
"""The columns that may tell one row from another beside its size."""


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
            Column(name="model"),
            Column(name="workload"),
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
        return (*(None,) * 10, *conditions)
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
        ", ".join(part for part, value in other.items() if value == "fused") or None,
        weights,
        ", ".join(worded(part, value) for part, value in other.items() if value != "fused") or None,
        *conditions,
    )


def _size(case: Case) -> tuple[Cell, ...]:
    if isinstance(case, ConfiguredCase):
        return case.name, workload(case.workload)
    return label(case), None


def _row(measurement: Measurement | None) -> tuple[Cell, ...]:
    return (
        *_time_cells(measurement),
        tokens_per_s(measurement),
        flops_per_s(measurement),
        peak_bytes(measurement),
        verdict(measurement),
    )


def _troubles(measurement: Measurement | None) -> str | None:
    """Tells what the outputs of a measurement show beside the times, or None where they show no trouble."""
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
    rows = [
        Row(
            point=Point(case=case, protocol=protocol, name=" ".join(settings(case))),
            measurement=readings.find((case, protocol)),
        )
        for case, protocol in plan
        if isinstance(case, ConfiguredCase)
    ]
    return tuple(said for group in groups(rows, _work) for said in _compare(rank(group)))


def _work(row: Row[Point[ConfiguredCase]]) -> tuple[object, ...]:
    """Returns what is alike in rows that only their configurations tell apart."""
    case = row.point.case
    return _model(case), case.workload, case.memory_limit_bytes, row.point.protocol


def _model(case: ConfiguredCase) -> object:
    return case.model if isinstance(case, ModelCase) else (case.source, case.fingerprint)


def _compare(ranking: Ranking) -> Iterator[Conclusion]:
    """A winner only where its interval lies apart from that of the next."""
    if len(ranking.timed) < 2:
        return
    fastest, slowest = ranking.timed[0], ranking.timed[-1]
    first, last = fastest.measurement, slowest.measurement
    assert first is not None and last is not None and fastest.time and slowest.time
    told, where = Sentence(), ", ".join((place(fastest.point.case), *_conditions(first)))
    n = told.count("configurations", len(ranking.timed), sources(ranking.timed))
    if slowest in ranking.near:
        yield from told.end(
            f"{where}: none of {n} configurations is measurably faster than another{ranking.absent}."
        )
        return
    speed = longer(fastest, slowest)
    yield from told.end(
        f"{where}: of {n} configurations {', '.join(settings(fastest.point.case))} is "
        f"{'among the fastest' if ranking.near else ranking.title}, at "
        f"{told.interval('fastest over slowest', speed, 'ratio', last, first)} the speed of "
        f"{', '.join(settings(slowest.point.case))}, by intervals{processes(first, last)}{ranking.absent}."
    )


def _conditions(measured: Measurement) -> tuple[str, ...]:
    """Returns what tells groups of one place from each other: the warm-up, and the memory limit."""
    steps = measured.protocol.warmup_steps
    warmup = (
        "warm-up until steady"
        if steps is None
        else f"{steps} warm-up step{'' if steps == 1 else 's'}"
    )
    limit = getattr(measured.case, "memory_limit_bytes", None)
    return (warmup,) if limit is None else (warmup, f"at most {format_cell(limit, 'bytes')}")
