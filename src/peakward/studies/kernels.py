"""Study `kernels`: which kernels take a step's time, and how much of them are matmuls.

Every case is timed, then profiled: what is said of kernels comes from its trace, and the profiler's own times
are only compared with the plain timer's. On a CPU the trace has operators in the place of kernels.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from operator import attrgetter

from peakward.records.case import ModelCase, Pass
from peakward.records.profile import KernelGroup, WorkPhase
from peakward.records.study import Conclusion, Plot, Table
from peakward.records.study import Point as Mark
from peakward.studies import values
from peakward.studies.cases import model_case, place
from peakward.studies.claims import extremes, listed
from peakward.studies.engine import Point, Row, Study, View
from peakward.studies.readings import ratio
from peakward.studies.setting import Setting
from peakward.studies.values import Value, given, of_row, plot, table, text
from peakward.tune.profiles import N_STEPS

NAMES: dict[Pass, str] = {"forward": "inference", "train_step": "training step"}
BETWEEN_CORNERS = 512
"""A share's curve needs a third length."""
MATMUL = "matmul"
MOVED = "memory"
"""The driver's own copies and sets: work, but no kernels."""
PHASES: tuple[WorkPhase, ...] = ("forward", "backward", "optimizer", "other")
PASSES: tuple[WorkPhase, ...] = ("forward", "backward")
TOP = 5
"""Kernels of each phase of a case that are listed."""
MOST_BARS = 7
"""Categories drawn; the table has all."""
NS = 1e-9

Case = Point[ModelCase]
CaseRow = Row[Case]
Listed = tuple[CaseRow, KernelGroup]
total_ns: Callable[[KernelGroup], int] = attrgetter("total_ns")


def points(setting: Setting) -> Iterator[Case]:
    """Size × sequence × pass, in the baseline configuration."""
    grid, lengths = setting.grid, setting.grid.seq_lens
    if setting.scope.name == "corners" and not setting.scope.seq_lens:
        lengths = tuple(sorted({*lengths, BETWEEN_CORNERS}))
    for shape, seq_len, pass_ in product(grid.models, lengths, NAMES):
        case = model_case(shape, grid.batch_size, seq_len, pass_, setting.device)
        by = setting.protocol(phases=False)
        yield Point(case=case, protocol=by, name=NAMES[pass_], also="profile")


def noun(view: View[Case]) -> str:
    """Returns the word for what the traces have: kernels on a GPU, operators on a CPU."""
    return "kernel" if view.on_gpu else "operator"


def category_ns(row: CaseRow, phases: Sequence[WorkPhase] = PHASES) -> dict[str, int]:
    """Kernel time in nanoseconds of each category in these phases, the longest first."""
    totals: Counter[str] = Counter()
    for each in () if row.profile is None else row.profile.profile.categories:
        if each.phase in phases and each.name != MOVED:
            totals[each.name] += each.total_ns
    return dict(totals.most_common())


def shares(row: CaseRow, phases: Sequence[WorkPhase] = PHASES) -> dict[str, float]:
    """Each category's share of kernel time in these phases, the largest first."""
    totals = category_ns(row, phases)
    return {name: ratio(ns, sum(totals.values())) or 0.0 for name, ns in totals.items()}


def matmul_share(row: CaseRow, phases: Sequence[WorkPhase] = PHASES) -> float | None:
    """The matmuls' share of kernel time; None where no kernel ran in these phases."""
    found = shares(row, phases)
    return found.get(MATMUL, 0.0) if found else None


def a_step(row: CaseRow, total_ns: int | None) -> float | None:
    """Seconds a profiled step; None of no time."""
    return total_ns * NS / row.profile.n_steps if row.profile is not None and total_ns else None


def step_s(row: CaseRow) -> float | None:
    """Kernel time of a step in seconds; None where the trace shows no work."""
    return a_step(row, sum(category_ns(row).values()))


def both_passes(view: View[Case]) -> list[tuple[CaseRow, ...]]:
    """Training and inference of each size and length of which both were profiled."""
    found = values.groups(profiled(view), lambda row: (row.point.case.model, seq_len(row)))
    return [group[::-1] for group in found if len(group) == len(NAMES)]


def longest(view: View[Case]) -> tuple[CaseRow, ...]:
    """The longest sequence of each size and pass that was profiled."""
    return values.largest(profiled(view), lambda row: (model(row), row.name), seq_len)


def profiled(view: View[Case]) -> list[CaseRow]:
    """The rows that have a profile."""
    return [row for row in view.rows if row.profile is not None]


def model(row: CaseRow) -> str:
    """The name of its model."""
    return row.point.case.model.name


def seq_len(row: CaseRow) -> int:
    """The sequence length of its case."""
    return row.point.case.workload.seq_len


def profiled_s(row: CaseRow) -> float | None:
    """Step time under the profiler."""
    return None if row.profile is None else row.profile.profiled_step_s


def top(view: View[Case]) -> Iterator[Table]:
    """The kernels of each phase that take most, that run most often, and that are no matmuls."""
    yield from most_by(view, "take most", total_ns)
    yield from most_by(view, "run most", attrgetter("n"))
    yield from most_by(view, "take most and are no matmuls", total_ns, without=MATMUL)


def most_by(
    view: View[Case], do: str, size: Callable[[KernelGroup], int], *, without: str | None = None
) -> Iterator[Table]:
    """A table for each case of `longest`: the first kernels of each phase by size."""

    def lines(view: View[Case]) -> Iterator[Listed]:
        for row, phase in product(longest(view), PHASES):
            inside = [each for each in kernels(row, without) if each.phase == phase]
            yield from ((row, each) for each in sorted(inside, key=size, reverse=True)[:TOP])

    what = f"the {TOP} {noun(view)}s of each phase that {do}"
    return table(
        lambda line: f"{place(line[0].point.case)}: {what}",
        (
            Value(noun(view), "name", lambda line: line[1].name),
            text("phase", lambda line: line[1].phase),
            text("category", lambda line: line[1].category),
            Value("n", "count", lambda line: line[1].n),
            time_of("total"),
            Value("share of the phase", "share", share_of_phase),
            *map(time_of, ("mean", "median", "min", "max", "std")),
        ),
        lines,
        each=lambda line: line[0].point.case,
        note=lambda line: f"Over {line[0].profile.n_steps} profiled steps.",
    )(view)


def kernels(row: CaseRow, without: str | None = None) -> list[KernelGroup]:
    """The trace's kernels without those of a category, and without the driver's copies and sets."""
    found = () if row.profile is None else row.profile.profile.kernels
    return [each for each in found if each.category not in (MOVED, without)]


def share_of_phase(line: Listed) -> float | None:
    """The kernel's share of the time of its phase."""
    row, kernel = line
    assert kernel.phase is not None
    return ratio(kernel.total_ns, sum(category_ns(row, (kernel.phase,)).values()))


def time_of(name: str) -> Value:
    """A figure of a kernel's instances, in seconds."""
    return Value(name.replace("std", "sd"), "s", lambda line: getattr(line[1], f"{name}_ns") * NS)


def in_phases(name: str, phases: Sequence[WorkPhase]) -> Value:
    """A category's time a step in these phases: of lines of a row and a category."""
    return Value(name, "s", lambda line: a_step(line[0], category_ns(line[0], phases).get(line[1])))


def bars(view: View[Case]) -> Iterator[Plot]:
    """The categories of each size at its longest sequence, for each pass."""
    for name in NAMES.values():
        told = [(model(row), shares(row)) for row in longest(view) if row.name == name]
        totals: Counter[str] = Counter()
        for _, each in told:
            totals.update(each)
        yield Plot(
            title=f"Time by category, {name}",
            kind="bars",
            x_label="category",
            y_label="share of the time",
            x_unit="text",
            y_unit="share",
            series=values.series(
                (of, Mark(x=x, y=each[category], label=category))
                for of, each in told
                for x, (category, _) in enumerate(totals.most_common(MOST_BARS))
                if category in each
            ),
        )


def matmuls(view: View[Case]) -> Iterator[Conclusion]:
    """How much of the time is matmuls, for each size at its longest sequence."""
    both = values.largest(
        both_passes(view), lambda each: model(each[0]), lambda each: seq_len(each[0])
    )
    for each in both:
        work = each[0].case.workload
        size = f"{model(each[0])} {work.batch_size} × {work.seq_len}"
        subject = f"Share of matmuls in the {noun(view)} time of {size}"
        yield from listed(subject, SHARES, each, *(row.profile for row in each))


def ranges(view: View[Case]) -> Iterator[Conclusion]:
    """Where matmuls take least and most, and what the profiler cost, over every case that was profiled."""
    yield from extremes(
        "Matmuls take",
        SHARE,
        view.rows,
        of=f"of {noun(view)} time",
        behind=lambda row: (row.profile,),
    )
    yield from extremes(
        "Under the profiler a step takes",
        OVER_PLAIN,
        view.rows,
        of="of its time by the plain timer",
        behind=lambda row: (row.measurement, row.profile),
    )


def after_matmuls(view: View[Case]) -> Iterator[Conclusion]:
    """Says what takes most beside matmuls at each longest sequence: a category, and one kernel of a phase."""
    for row in longest(view):
        others = [(share, name) for name, share in shares(row).items() if name != MATMUL]
        found, profile = kernels(row, MATMUL), row.profile
        if profile is None or not others or not found:
            continue
        (share, category), kernel = others[0], max(found, key=total_ns)
        of_kernel = kernel.total_ns / sum(category_ns(row).values())
        phase = f" in the phase {kernel.phase}" if kernel.phase else ""
        figures = (
            given(f"{category} {noun(view)}s", "share", share),
            given(f"{kernel.name}{phase}", "share", of_kernel),
            given("its instances", "count", kernel.n),
            given("profiled steps", "count", profile.n_steps),
        )
        yield from listed(f"Beside matmuls {place(row.case)} goes most to", figures, row, profile)


def notes(view: View[Case]) -> tuple[str, ...]:
    """Returns notes that say what a profile and its tables include."""
    work = noun(view)
    return (
        f"Each profile is of {N_STEPS} steps of a warm case. Work is the durations of {work}s, without "
        f"copies and sets by the driver, and shares are of it; matmuls are the {work}s of that category, "
        "without fused attention.",
        f"The {work}s one by one are of the longest sequence of each size and pass; the record has those of "
        "all.",
    )


PARTS = {"forward": PASSES[:1], "forward + backward": PASSES, "whole step": PHASES}
OVER_PLAIN = Value("over the plain", "ratio", lambda row: ratio(profiled_s(row), row.median_s))
SHARE = Value("share of matmuls", "share", matmul_share)
SHARES = (
    Value("inference", "share", lambda both: matmul_share(both[1])),
    *of_row(
        *(Value(name, "share", partial(matmul_share, phases=of)) for name, of in PARTS.items())
    ),
)
STUDY = Study(
    title="Which kernels take a step's time, and how much of them are matmuls?",
    points=points,
    tables=(
        table(
            "Under the profiler, and by the plain timer",
            (
                *values.SIZE,
                values.STATUS,
                Value("plain step", "s", values.MEDIAN.get),
                Value("profiled step", "s", profiled_s),
                OVER_PLAIN,
                Value("work in a step", "s", step_s),
                values.VERDICT,
            ),
            note="The plain step is the measured time. No other figure rests on a profiled step's.",
        ),
        table(
            "Share of matmuls",
            (
                *of_row(*values.SIZE),
                *SHARES,
                *of_row(
                    Value("in no category", "share", lambda row: row.profile.profile.unnamed_share)
                ),
            ),
            lambda view: (both for both in both_passes(view) if step_s(both[0])),
            note="The last four are of the training step.",
        ),
        top,
        table(
            "Time by category and phase",
            (
                *of_row(*values.SIZE),
                text("category", lambda line: line[1]),
                *(in_phases(phase, (phase,)) for phase in PHASES),
                in_phases("total", PHASES),
                Value("share", "share", lambda line: shares(line[0])[line[1]]),
            ),
            lambda view: ((row, name) for row in view.rows for name in category_ns(row)),
            note="Seconds a step.",
        ),
    ),
    plots=(
        bars,
        plot(
            "Share of matmuls by sequence length",
            values.SEQ_LEN,
            SHARE,
            lambda row: f"{model(row)}, {row.name}",
            log="x",
        ),
    ),
    claims=(matmuls, ranges, after_matmuls),
    notes=notes,
)
