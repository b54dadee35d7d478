"""The memory of a run: predicted and measured peaks, the effect of levers, and a recorded step on its clock.

One table of the clock's peaks and queues would be a third wider than a page of 1,200 pixels.
"""

from collections.abc import Iterator

import msgspec

from peakward.records.memory import CaseMemory, MemoryPrediction, MemorySplit, PeakMoment, PhasePeak
from peakward.records.study import Cell, Column, Study, Table
from peakward.report.columns import without_empty
from peakward.report.document import Section, TableBlock
from peakward.report.run.investigation import KnownConfiguration, RunParts
from peakward.report.run.levers import base_name, memory_change

_CATEGORIES = tuple(each.removesuffix("_bytes") for each in MemorySplit.__struct_fields__)


def section(study: Study, read: RunParts) -> Section:
    """The peaks and the levers' effects; empty where nothing was predicted, measured or recorded."""
    tables = (_peaks(study, read), _levers(study, read), *_clocks(study, read))
    return Section(
        title="Memory",
        blocks=tuple(TableBlock(table=without_empty(each)) for each in tables if each.rows),
    )


def _peaks(study: Study, read: RunParts) -> Table:
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


def _peak(point: KnownConfiguration, prediction: MemoryPrediction) -> tuple[Cell, ...]:
    use = point.measurement.memory if point.measurement else None
    eager = ", uncompiled" if prediction.basis == "eager step" else ""
    return (
        point.name,
        prediction.phase + eager,
        *(n_bytes or None for n_bytes in msgspec.structs.astuple(prediction.peak)),
        prediction.peak_bytes,
        None if use is None else use.peak_allocated_bytes,
    )


def _levers(study: Study, read: RunParts) -> Table:
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


def _clocks(study: Study, read: RunParts) -> tuple[Table, Table]:
    """The clocks of the configurations whose recording from this machine is stored."""
    recorded = {each.case: each for each in study.memory}
    known = [(point.name, recorded[point.case]) for point in read.points if point.case in recorded]
    name = Column(name="configuration", unit="name")
    return (
        Table(
            title=PEAKS_TITLE,
            columns=(name, *PEAK_COLUMNS),
            rows=tuple((of, *row) for of, each in known for row in peak_rows(each)),
            note=PEAKS_NOTE,
        ),
        Table(
            title=QUEUE_TITLE,
            columns=(name, *QUEUE_COLUMNS),
            rows=tuple((of, *row) for of, each in known for row in queue_rows(each)),
            note=QUEUE_NOTE,
        ),
    )


PEAKS_TITLE = "Peaks on the clock of the kernels"
PEAK_COLUMNS = (
    Column(name="phase"),
    Column(name="peak", unit="bytes"),
    Column(name="at", unit="s"),
    Column(name="operator", unit="name"),
    Column(name="kernel at work", unit="name"),
)
PEAKS_NOTE = (
    "Each phase of the recorded step at its peak: the time since the step began, the operator "
    "on the host and the kernel on the device."
)
QUEUE_TITLE = "How far the host was ahead at these peaks"
QUEUE_COLUMNS = (
    Column(name="phase"),
    Column(name="category"),
    Column(name="queued", unit="s"),
    Column(name="host ahead", unit="s"),
    Column(name="kernels from", unit="s"),
    Column(name="kernels to", unit="s"),
)
QUEUE_NOTE = (
    "Queued: how long the running kernel, of that category, had been queued. Host ahead: the "
    "time until all work launched before had run. Kernels: from the first start to the last "
    "end of the phase's kernels. The profiler and the recorded stacks slow the host; in a "
    "timed step the host is further ahead."
)


def peak_rows(memory: CaseMemory) -> list[tuple[Cell, ...]]:
    """Rows for `PEAK_COLUMNS`; none for a step without a clock."""
    return [
        (peak.phase, peak.allocated_bytes, at.at_s, at.operator, at.kernel)
        for peak, at in _moments(memory)
    ]


def queue_rows(memory: CaseMemory) -> list[tuple[Cell, ...]]:
    """Rows for `QUEUE_COLUMNS`; none for a step without a clock."""
    if memory.clock is None:
        return []
    kernels = {each.phase: (each.begin_s, each.end_s) for each in memory.clock.kernels}
    return [
        (
            peak.phase,
            at.category,
            at.queued_s,
            at.host_ahead_s,
            *kernels.get(peak.phase, (None, None)),
        )
        for peak, at in _moments(memory)
    ]


def _moments(memory: CaseMemory) -> Iterator[tuple[PhasePeak, PeakMoment]]:
    if memory.clock is not None:
        yield from zip(memory.phases, memory.clock.peaks, strict=True)
