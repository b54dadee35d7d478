"""The memory of a run: predicted peaks by category, measured peaks, and the effect of levers."""

import msgspec

from peakward.records.memory import MemoryPrediction, MemorySplit
from peakward.records.study import Cell, Column, Study, Table
from peakward.report import step_clock
from peakward.report.columns import without_empty
from peakward.report.document import Section, TableBlock
from peakward.report.run.investigation import Investigation, Point
from peakward.report.run.levers import base_name, memory_change

_CATEGORIES = tuple(each.removesuffix("_bytes") for each in MemorySplit.__struct_fields__)


def section(study: Study, read: Investigation) -> Section:
    """The peaks and the levers' effects; empty where nothing was predicted, measured or recorded."""
    tables = (_peaks(study, read), _levers(study, read), *_clocks(study, read))
    return Section(
        title="Memory",
        blocks=tuple(TableBlock(table=without_empty(each)) for each in tables if each.rows),
    )


def _peaks(study: Study, read: Investigation) -> Table:
    predictions = {each.case: each.memory for each in study.forecasts if each.memory is not None}
    return Table(
        title="Peak memory: predicted by category, and measured",
        columns=(
            Column(name="configuration", unit="name"),
            Column(name="peak in"),
            *(Column(name=name.replace("_", " "), unit="bytes") for name in _CATEGORIES),
            Column(name="predicted", unit="bytes"),
            Column(name="measured", unit="bytes"),
        ),
        rows=tuple(
            _peak(point, predictions[point.case])
            for point in read.points
            if point.case in predictions
        ),
        note="Measured: the allocator's maximum. Its categories need a recording (`peakward study "
        "memory`).",
    )


def _peak(point: Point, prediction: MemoryPrediction) -> tuple[Cell, ...]:
    use = point.measurement.memory if point.measurement else None
    eager = ", uncompiled" if prediction.basis == "eager step" else ""
    return (
        point.name,
        prediction.phase + eager,
        *(n_bytes or None for n_bytes in msgspec.structs.astuple(prediction.peak)),
        prediction.peak_bytes,
        None if use is None else use.peak_allocated_bytes,
    )


def _levers(study: Study, read: Investigation) -> Table:
    """For each lever on each base the last trial that ran both, the largest saving first."""
    last = {
        (each.lever, each.base): each for each in study.trials if memory_change(each) is not None
    }
    return Table(
        title="Effect of each lever on the peak",
        columns=(
            Column(name="lever"),
            Column(name="on"),
            Column(name="without", unit="bytes"),
            Column(name="with", unit="bytes"),
            Column(name="change", unit="share"),
        ),
        rows=tuple(
            (
                each.lever,
                base_name(each.base, read),
                each.base_peak_bytes,
                each.candidate_peak_bytes,
                memory_change(each),
            )
            for each in sorted(last.values(), key=lambda each: memory_change(each) or 0.0)
        ),
        note="Measured, whether or not the lever is in the best.",
    )


def _clocks(study: Study, read: Investigation) -> tuple[Table, Table]:
    """The clocks of the configurations whose recording from this machine is stored."""
    recorded = {each.case: each for each in study.memory}
    known = [(point.name, recorded[point.case]) for point in read.points if point.case in recorded]
    name = Column(name="configuration", unit="name")
    return (
        Table(
            title=step_clock.PEAKS_TITLE,
            columns=(name, *step_clock.PEAK_COLUMNS),
            rows=tuple((of, *row) for of, each in known for row in step_clock.peak_rows(each)),
            note=step_clock.PEAKS_NOTE,
        ),
        Table(
            title=step_clock.QUEUE_TITLE,
            columns=(name, *step_clock.QUEUE_COLUMNS),
            rows=tuple((of, *row) for of, each in known for row in step_clock.queue_rows(each)),
            note=step_clock.QUEUE_NOTE,
        ),
    )
