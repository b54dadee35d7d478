"""The tables and the plot of `warmup`."""

from peakward.records.case import ModelCase
from peakward.records.measurement import Measurement
from peakward.records.study import Cell, Column, Plot, Point, Series, Table
from peakward.studies.cases import SIZE_COLUMNS, size_cells
from peakward.studies.readings import ratio, status, verdict
from peakward.studies.warmup.grid import PASSES, FirstStepCost, Reading, Statistic


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


def first_steps(costs: tuple[FirstStepCost, ...]) -> Table:
    """What first steps took beyond steady ones, in parts that sum to it."""
    names = tuple(dict.fromkeys(part.name for cost in costs for part in cost.parts))
    return Table(
        title="What the first step of a fresh process took beyond a steady one",
        columns=(
            *SIZE_COLUMNS,
            Column(name="first step", unit="s"),
            Column(name="beyond a steady one", unit="s"),
            *(Column(name=name, unit="s") for name in names),
            Column(name="everything else", unit="s"),
            Column(name="share of everything else", unit="share"),
            Column(name="device allocations", unit="count"),
            Column(name="page faults", unit="count"),
            Column(name="first step, profiled", unit="s"),
            Column(name="a steady one, profiled", unit="s"),
        ),
        rows=tuple(_first_step_row(cost, names) for cost in costs),
        note="Parts are of a profiled process, the first two columns of a timed one; everything else is "
        "what the parts leave. A dash: not measured in this record, and so in everything else.",
    )


def _first_step_row(cost: FirstStepCost, names: tuple[str, ...]) -> tuple[Cell, ...]:
    cold, profile = cost.cold, cost.profile
    assert isinstance(cold.case, ModelCase)
    seconds = {part.name: part.seconds for part in cost.parts}
    return (
        *size_cells(cold.case),
        cold.runs[0].steps_s[0] if cold.runs else None,
        cost.excess_s,
        *(seconds.get(name) for name in names),
        cost.other_s,
        ratio(cost.other_s, cost.excess_s),
        profile.n_device_allocations,
        profile.n_page_faults,
        profile.profiled_s,
        profile.profiled_steady_s,
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
