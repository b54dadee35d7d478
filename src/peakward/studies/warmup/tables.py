"""The tables and the plot of `warmup`."""

from peakward.records.case import ModelCase
from peakward.records.measurement import Measurement
from peakward.records.study import Column, Plot, Point, Series, Table
from peakward.studies.cases import SIZE_COLUMNS, size_cells
from peakward.studies.readings import ratio, status, verdict
from peakward.studies.warmup.grid import PASSES, Reading, Statistic


def times(rows: tuple[Reading, ...]) -> Table:
    """Totals and statistics of the ten steps."""
    names = ("total", "warm-up", "median", "mean", "standard deviation")
    return Table(
        title="Steps after 0, 1 and 5 warm-up steps",
        columns=(
            *SIZE_COLUMNS,
            Column(name="warm-up steps", unit="count"),
            Column(name="status"),
            *(Column(name=name, unit="s") for name in names),
            Column(name="verdict"),
        ),
        rows=tuple(
            (
                *size_cells(row.case),
                row.warmup_steps,
                status(row.measurement),
                *_time_cells(row.measurement),
                verdict(row.measurement),
            )
            for row in rows
        ),
    )


def _time_cells(measurement: Measurement | None) -> tuple[float | None, ...]:
    if measurement is None or measurement.summary is None:
        return (None,) * 5
    summary = measurement.summary
    warmup_s = sum(sum(run.warmup_s) for run in measurement.runs)
    timed_s = sum(sum(run.steps_s) for run in measurement.runs)
    return (warmup_s + timed_s, warmup_s, summary.median_s.estimate, summary.mean_s, summary.sd_s)


def offsets(rows: tuple[Reading, ...]) -> Table:
    """Each statistic of the ten steps over the steady time."""
    statistics: tuple[Statistic, ...] = ("first", "mean", "median", "min", "sd")
    names = ("first timed step", "mean", "median", "minimum", "standard deviation")
    return Table(
        title="Each statistic as a multiple of the steady time",
        columns=(
            *SIZE_COLUMNS,
            Column(name="warm-up steps", unit="count"),
            Column(name="steady time", unit="s"),
            *(Column(name=name, unit="ratio") for name in names),
        ),
        rows=tuple(
            (
                *size_cells(row.case),
                row.warmup_steps,
                row.steady_s,
                *(row.over_steady(statistic) for statistic in statistics),
            )
            for row in rows
        ),
    )


def first_steps(measurements: tuple[Measurement, ...]) -> Table:
    """Where the time of a first step went."""
    rows = []
    for measurement in measurements:
        first = measurement.first_step
        if first is None or not isinstance(measurement.case, ModelCase):
            continue
        rows.append(
            (
                *size_cells(measurement.case),
                first.profiled_s,
                first.module_load_s,
                ratio(first.module_load_s, first.profiled_s),
                first.allocation_s,
                ratio(first.allocation_s, first.profiled_s),
                first.n_device_allocations,
                first.n_page_faults,
            )
        )
    return Table(
        title="What the first step of a fresh process did",
        columns=(
            *SIZE_COLUMNS,
            Column(name="first step, profiled", unit="s"),
            Column(name="module load", unit="s"),
            Column(name="share of the step", unit="share"),
            Column(name="allocation", unit="s"),
            Column(name="its share", unit="share"),
            Column(name="device allocations", unit="count"),
            Column(name="page faults", unit="count"),
        ),
        rows=tuple(rows),
        note="Under a profiler, in a process of its own: not comparable with the times above.",
    )


def plot(rows: tuple[Reading, ...]) -> Plot:
    """The steps as they ran, of one case a size."""
    series = []
    for row in rows:
        measurement, work = row.measurement, row.case.workload
        longest = max(each.case.workload.seq_len for each in rows)
        if row.warmup_steps or work.pass_ != PASSES[-1] or work.seq_len != longest:
            continue
        if measurement is not None and measurement.runs:
            steps_s = measurement.runs[0].steps_s
            points = tuple(Point(x=i + 1, y=step_s) for i, step_s in enumerate(steps_s))
            series.append(Series(name=row.case.model.name, points=points))
    return Plot(
        title="Steps of a fresh process without warm-up",
        kind="lines",
        x_label="step",
        y_label="time",
        x_unit="count",
        y_unit="s",
        log_y=True,
        series=tuple(series),
    )
