"""Study `warmup`: what a benchmark without warm-up steps reports, against the steady time.

Every case runs in a fresh process and times ten steps, as a first benchmark script would.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Literal

from peakward.records.case import ModelCase, Pass
from peakward.records.measurement import FirstStep
from peakward.records.study import Conclusion, Plot, Table
from peakward.studies.cases import model_case, place
from peakward.studies.claims import extremes, listed
from peakward.studies.engine import Point, Row, Study, View
from peakward.studies.readings import median_s, ratio
from peakward.studies.setting import Setting
from peakward.studies.values import SIZE, STATUS, VERDICT, Value, given, mark, series, table

WARMUPS = (0, 1, 5)
N_TIMED = 10
PASSES: tuple[Pass, ...] = ("forward", "forward_backward")
Statistic = Literal["first", "mean", "median", "min", "sd"]
STATISTICS: dict[str, Statistic] = {
    "first timed step": "first",
    "mean": "mean",
    "median": "median",
    "minimum": "min",
    "standard deviation": "sd",
}
OFFSETS = ("first timed step", "mean", "median", "standard deviation")
"""The statistics that sentences tell."""
Case = Point[ModelCase]
"""Held against the same after the most warm-up steps, whose median is the steady time."""


def points(setting: Setting) -> Iterator[Case]:
    """Size × sequence × pass × warm-up steps. Of each size the longest case with the backward pass has its
    first step profiled too."""
    grid = setting.grid
    protocols = [
        setting.protocol(
            warmup_steps=steps,
            min_steps=N_TIMED,
            max_steps=N_TIMED,
            phases=False,
            fresh_process=True,
        )
        for steps in WARMUPS
    ]
    for shape, seq_len, pass_ in product(grid.models, grid.seq_lens, PASSES):
        case = model_case(shape, grid.batch_size, seq_len, pass_, setting.device)
        is_explained = seq_len == max(grid.seq_lens) and pass_ == PASSES[-1]
        for protocol in protocols:
            yield Point(
                case=case,
                protocol=protocol,
                base=(case, protocols[-1]),
                also="first step" if is_explained and not protocol.warmup_steps else None,
            )


def warmup_steps(row: Row[Case]) -> int:
    """How many steps ran before the timed ones."""
    return row.point.protocol.warmup_steps or 0


def statistic(row: Row[Case], name: Statistic) -> float | None:
    """A statistic of the ten steps, in seconds."""
    if row.measurement is None or row.measurement.summary is None:
        return None
    summary = row.measurement.summary
    return {
        "first": row.measurement.runs[0].steps_s[0],
        "mean": summary.mean_s,
        "median": summary.median_s.estimate,
        "min": summary.min_s,
        "sd": summary.sd_s,
    }[name]


def over_steady(row: Row[Case], name: Statistic) -> float | None:
    """The statistic as a multiple of the steady time: 1 is right, 0 is right for `sd`."""
    return ratio(statistic(row, name), median_s(row.base))


def multiple(name: Statistic) -> Callable[[Row[Case]], float | None]:
    """Reads `over_steady` off a row."""
    return lambda row: over_steady(row, name)


def warmup_s(row: Row[Case]) -> float | None:
    """Returns the seconds that the warm-up took in all."""
    if row.measurement is None or row.measurement.summary is None:
        return None
    return sum(sum(run.warmup_s) for run in row.measurement.runs)


def total_s(row: Row[Case]) -> float | None:
    """Returns the seconds that warm-up and timed steps took in all."""
    if row.measurement is None or row.measurement.summary is None:
        return None
    return (warmup_s(row) or 0.0) + sum(sum(run.steps_s) for run in row.measurement.runs)


def profiled(view: View[Case]) -> Iterator[tuple[Row[Case], FirstStep]]:
    """The rows whose first step was profiled, with what the profile tells."""
    for row in view.rows:
        if row.point.also and row.measurement is not None and row.measurement.first_step:
            yield row, row.measurement.first_step


def first_step_s(row: Row[Case]) -> float | None:
    """The first step of the timed process."""
    return row.measurement.runs[0].steps_s[0] if row.measurement and row.measurement.runs else None


def excess_s(row: Row[Case]) -> float | None:
    """Returns the seconds that the timed first step took beyond a steady one; None where either was not
    timed."""
    steady_s, first_s = median_s(row.base), first_step_s(row)
    return None if steady_s is None or first_s is None or row.status != "ok" else first_s - steady_s


def parts(first: FirstStep, *, on_gpu: bool) -> dict[str, float | None]:
    """Returns what a first step took longer for, in seconds: the parts that this kind of device has. A
    part is None where the record does not tell it."""
    only_gpu = {
        "module loading": first.module_load_s,
        "memory allocation": first.allocation_s,
        "cuBLAS's set-up and heuristics": first.products_s,
    }
    both = {"autotuning": first.autotune_s, "compilation": first.compile_s}
    return (only_gpu if on_gpu else {}) | both


def other_s(row: Row[Case], told: Sequence[float | None]) -> float | None:
    """The excess less the parts: what none of them explains; below 0 where the parts, taken under a
    profiler, come to more than the excess."""
    excess = excess_s(row)
    return None if excess is None else excess - sum(each for each in told if each is not None)


def first_steps(view: View[Case]) -> Iterator[Table]:
    """Yields a table of what first steps took beyond steady ones, in parts that sum to it."""

    def of_row(row: Row[Case]) -> FirstStep:
        assert row.measurement is not None and row.measurement.first_step is not None
        return row.measurement.first_step

    def told(row: Row[Case]) -> dict[str, float | None]:
        return parts(of_row(row), on_gpu=view.on_gpu)

    def part(name: str) -> Callable[[Row[Case]], float | None]:
        return lambda row: told(row)[name]

    def rest_s(row: Row[Case]) -> float | None:
        return other_s(row, tuple(told(row).values()))

    rows = [row for row, _ in profiled(view)]
    names = told(rows[0]) if rows else {}
    yield from table(
        "What the first step of a fresh process took beyond a steady one",
        (
            *SIZE,
            Value("first step", "s", first_step_s),
            Value("beyond a steady one", "s", excess_s),
            *(Value(name, "s", part(name)) for name in names),
            Value("everything else", "s", rest_s),
            Value(
                "share of everything else", "share", lambda row: ratio(rest_s(row), excess_s(row))
            ),
            Value("device allocations", "count", lambda row: of_row(row).n_device_allocations),
            Value("page faults", "count", lambda row: of_row(row).n_page_faults),
            Value("first step, profiled", "s", lambda row: of_row(row).profiled_s),
            Value("a steady one, profiled", "s", lambda row: of_row(row).profiled_steady_s),
        ),
        lambda _view: rows,
        note="Parts are of a profiled process, the first two columns of a timed one; everything else is "
        "what the parts leave. A dash: not measured in this record, and so in everything else.",
    )(view)


def cold_steps(view: View[Case]) -> Iterator[Plot]:
    """The steps as they ran, of one case a size."""
    yield Plot(
        title="Steps of a fresh process without warm-up",
        kind="lines",
        x_label="step",
        y_label="time",
        x_unit="count",
        y_unit="s",
        log_y=True,
        series=series(
            (row.point.case.model.name, mark(place, step_s))
            for row in view.rows
            if row.point.also and row.measurement is not None and row.measurement.runs
            for place, step_s in enumerate(row.measurement.runs[0].steps_s, start=1)
        ),
    )


def offsets(view: View[Case]) -> Iterator[Conclusion]:
    """How far off the statistics are after so many warm-up steps; after the most of them the noise."""
    for steps in WARMUPS:
        rows = [row for row in view.rows if warmup_steps(row) == steps]
        after = "Without warm-up" if not steps else f"After {steps} warm-up steps"
        for name in OFFSETS if steps < max(WARMUPS) else OFFSETS[-1:]:
            yield from extremes(
                f"{after.removesuffix('s') if steps == 1 else after} the {name} of {N_TIMED} steps is",
                Value(name, "ratio", multiple(STATISTICS[name])),
                rows,
                of="the steady time",
                behind=lambda row: row.both,
            )


def explained(view: View[Case]) -> Iterator[Conclusion]:
    """Says what first steps took longer for than steady ones, in parts that sum to it; nothing where one
    was not timed, or took no longer."""
    for row, first in profiled(view):
        excess, own = excess_s(row), row.measurement
        if excess is None or excess <= 0:
            continue
        found = parts(first, on_gpu=view.on_gpu)
        rest = other_s(row, tuple(found.values())) if any(found.values()) else None
        unknown = ", ".join(name for name, seconds in found.items() if seconds is None)
        figures = (
            Value("in all", "s", first_step_s),
            Value("beyond a steady one", "s", excess_s),
            *(given(name, "s", seconds) for name, seconds in found.items()),
            given("everything else", "s", rest),
            given("its share", "share", ratio(rest, excess)),
            given("page faults", "count", first.n_page_faults),
        )
        text = f"The first step of {place(row.case)}"
        if unknown:
            text += f" (not measured in this record: {unknown})"
        yield from listed(text, figures, row, own, row.base)


STEPS = Value("warm-up steps", "count", warmup_steps)
STUDY = Study(
    title="How far off is a benchmark without warm-up?",
    points=points,
    tables=(
        table(
            "Steps after 0, 1 and 5 warm-up steps",
            (
                *SIZE,
                STEPS,
                STATUS,
                Value("total", "s", total_s),
                Value("warm-up", "s", warmup_s),
                Value("median", "s", lambda row: statistic(row, "median")),
                Value("mean", "s", lambda row: statistic(row, "mean")),
                Value("standard deviation", "s", lambda row: statistic(row, "sd")),
                VERDICT,
            ),
        ),
        table(
            "Each statistic as a multiple of the steady time",
            (
                *SIZE,
                STEPS,
                Value("steady time", "s", lambda row: median_s(row.base)),
                *(Value(name, "ratio", multiple(field)) for name, field in STATISTICS.items()),
            ),
        ),
        first_steps,
    ),
    plots=(cold_steps,),
    claims=(offsets, explained),
    notes=lambda _view: (
        f"Each case ran in a fresh process and timed {N_TIMED} steps. The steady time is the "
        f"median after {max(WARMUPS)} warm-up steps.",
        "The parts of a first step are taken under a profiler in another fresh process: of a GPU, host "
        "time while it had nothing to do, beyond that of a steady step. cuBLAS's heuristics choose a "
        "kernel at the first product of each shape; autotuning is Inductor's and Triton's timing of "
        "candidates, which an eager step without Triton has none of. What is left for everything else may be "
        "below zero, as a step under a profiler runs slower.",
    ),
)
