"""Study `kernels`: which kernels take a step's time, and how much of them are matmuls.

Every case is timed, then profiled: what is said of kernels comes from its trace, and the profiler's own times
are only compared with the plain timer's. On a CPU the trace has operators in the place of kernels.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import product

from peakward.records.case import ModelCase, Pass
from peakward.records.profile import CaseProfile, Group, WorkPhase
from peakward.records.study import Conclusion, Plot, Table
from peakward.records.study import Point as Mark
from peakward.studies import values
from peakward.studies.cases import model_case, place
from peakward.studies.claims import Sentence, known, least, most
from peakward.studies.engine import Point, Row, Study, View
from peakward.studies.readings import ratio
from peakward.studies.setting import Setting
from peakward.studies.values import (
    MEDIAN,
    SEQ_LEN,
    SIZE,
    STATUS,
    VERDICT,
    Value,
    of_row,
    plot,
    table,
    text,
)
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
Listed = tuple[CaseRow, Group]


def points(setting: Setting) -> Iterator[Case]:
    """Size × sequence × pass, in the baseline configuration."""
    grid, lengths = setting.grid, setting.grid.seq_lens
    if setting.scope.name == "corners" and not setting.scope.seq_lens:
        lengths = tuple(sorted({*lengths, BETWEEN_CORNERS}))
    for shape, seq_len, pass_ in product(grid.models, lengths, NAMES):
        case = model_case(shape, grid.batch_size, seq_len, pass_, setting.device)
        yield Point(case=case, protocol=setting.protocol(phases=False), also="profile")


def noun(view: View[Case]) -> str:
    """What the traces have."""
    return "kernel" if view.on_gpu else "operator"


def category_ns(found: CaseProfile, phases: Sequence[WorkPhase] = PHASES) -> dict[str, int]:
    """Kernel time in nanoseconds of each category in these phases, the longest first."""
    totals: dict[str, int] = {}
    for each in found.profile.categories:
        if each.phase in phases and each.name != MOVED:
            totals[each.name] = totals.get(each.name, 0) + each.total_ns
    return dict(sorted(totals.items(), key=lambda each: -each[1]))


def work_ns(found: CaseProfile, phases: Sequence[WorkPhase] = PHASES) -> int:
    """Kernel time in these phases in nanoseconds."""
    return sum(category_ns(found, phases).values())


def matmul_share(row: CaseRow, phases: Sequence[WorkPhase] = PHASES) -> float | None:
    """The matmuls' share of kernel time; None where no kernel ran in these phases."""
    if row.profile is None:
        return None
    return ratio(category_ns(row.profile, phases).get(MATMUL, 0), work_ns(row.profile, phases))


def over_plain(row: CaseRow) -> float | None:
    """Step time under the profiler over the plain timer's: what profiling costs."""
    return None if row.profile is None else ratio(row.profile.profiled_step_s, row.median_s)


def step_s(row: CaseRow) -> float | None:
    """Kernel time of a step in seconds; None where the trace shows no work."""
    total_ns = 0 if row.profile is None else work_ns(row.profile)
    return total_ns * NS / row.profile.n_steps if row.profile is not None and total_ns else None


def both_passes(view: View[Case]) -> Iterator[tuple[CaseRow, CaseRow]]:
    """Training and inference of each size and length of which both were profiled."""
    profiled = [row for row in view.rows if row.profile is not None]
    for group in values.groups(profiled, lambda row: (row.point.case.model, seq_len(row))):
        if len(group) == len(NAMES):
            inference, training = group
            yield training, inference


def longest(view: View[Case]) -> tuple[CaseRow, ...]:
    """The longest sequence of each size and pass that was profiled."""
    profiled = [row for row in view.rows if row.profile is not None]
    return values.largest(profiled, lambda row: (model(row), pass_of(row)), seq_len)


def model(row: CaseRow) -> str:
    """The name of its model."""
    return row.point.case.model.name


def seq_len(row: CaseRow) -> int:
    """The sequence length of its case."""
    return row.point.case.workload.seq_len


def pass_of(row: CaseRow) -> Pass:
    """The pass of its case."""
    return row.point.case.workload.pass_


def times(view: View[Case]) -> Iterator[Table]:
    """Each case under the profiler and by the plain timer."""
    profiled_s = Value(
        "profiled step", "s", lambda row: row.profile and row.profile.profiled_step_s
    )
    return table(
        "Under the profiler, and by the plain timer",
        (
            *SIZE,
            STATUS,
            Value("plain step", "s", MEDIAN.get),
            profiled_s,
            Value("over the plain", "ratio", over_plain),
            Value(f"{noun(view)}s in a step", "s", step_s),
            VERDICT,
        ),
        note="The plain step is the measured time. No other figure rests on a profiled step's.",
    )(view)


def matmul_shares(view: View[Case]) -> Iterator[Table]:
    """Matmuls in inference, and in more and more of a training step."""
    parts = {"forward": PASSES[:1], "forward + backward": PASSES, "whole step": PHASES}
    return table(
        f"Share of matmuls in {noun(view)} time",
        (
            *of_row(*SIZE),
            Value("inference", "share", lambda both: matmul_share(both[1])),
            *of_row(*(share_in(name, phases) for name, phases in parts.items())),
            *of_row(
                Value("in no category", "share", lambda row: row.profile.profile.unnamed_share)
            ),
        ),
        lambda view: (both for both in both_passes(view) if step_s(both[0])),
        note="The last four are of the training step.",
    )(view)


def share_in(name: str, phases: Sequence[WorkPhase]) -> Value:
    """The matmuls' share in these phases."""
    return Value(name, "share", lambda row: matmul_share(row, phases))


def top(view: View[Case]) -> Iterator[Table]:
    """The kernels of each phase that take most, that run most often, and that are no matmuls."""
    yield from listed(view, "take most", lambda _: True, total_ns)
    yield from listed(view, "run most", lambda _: True, lambda each: each.n)
    yield from listed(view, "take most and are no matmuls", is_no_matmul, total_ns)


def listed(
    view: View[Case], do: str, of: Callable[[Group], bool], size: Callable[[Group], int]
) -> Iterator[Table]:
    """A table for each case of `longest`: the first kernels of each phase by size."""

    def lines(view: View[Case]) -> Iterator[Listed]:
        for row, phase in product(longest(view), PHASES):
            inside = [each for each in kernels(row) if each.phase == phase and of(each)]
            yield from ((row, each) for each in sorted(inside, key=size, reverse=True)[:TOP])

    what = f"the {TOP} {noun(view)}s of each phase that {do}"
    return table(
        lambda line: f"{place(line[0].point.case)}: {what}",
        (
            Value(noun(view), "name", lambda line: line[1].name),
            text("phase", lambda line: line[1].phase),
            text("category", lambda line: line[1].category),
            Value("n", "count", lambda line: line[1].n),
            Value("total", "s", lambda line: line[1].total_ns * NS),
            Value("share of the phase", "share", share_of_phase),
            *map(time_of, ("mean", "median", "min", "max", "std")),
        ),
        lines,
        each=lambda line: line[0].point.case,
        note=lambda line: f"Over {line[0].profile.n_steps} profiled steps.",
    )(view)


def kernels(row: CaseRow) -> list[Group]:
    """The trace's kernels, without the driver's copies and sets."""
    found = () if row.profile is None else row.profile.profile.kernels
    return [each for each in found if each.category != MOVED]


def total_ns(kernel: Group) -> int:
    """The kernel's time in nanoseconds."""
    return kernel.total_ns


def is_no_matmul(kernel: Group) -> bool:
    """Whether the kernel is of another category."""
    return kernel.category != MATMUL


def share_of_phase(line: Listed) -> float | None:
    """The kernel's share of the time of its phase."""
    row, kernel = line
    assert row.profile is not None and kernel.phase is not None
    return ratio(kernel.total_ns, work_ns(row.profile, (kernel.phase,)))


def time_of(name: str) -> Value:
    """A figure of a kernel's instances, in seconds."""
    return Value(name.replace("std", "sd"), "s", lambda line: getattr(line[1], f"{name}_ns") * NS)


def categories(view: View[Case]) -> Iterator[Table]:
    """Each case's time by category and phase, the longest category first."""
    return table(
        f"{noun(view).capitalize()}s by category and phase",
        (
            *of_row(*SIZE),
            text("category", lambda line: line[1]),
            *(in_phases(phase, (phase,)) for phase in PHASES),
            in_phases("total", PHASES),
            Value("share", "share", lambda line: shares(line[0])[line[1]]),
        ),
        lambda view: (
            (row, name) for row in view.rows if row.profile for name in category_ns(row.profile)
        ),
        note="Seconds a step.",
    )(view)


def in_phases(name: str, phases: Sequence[WorkPhase]) -> Value:
    """A category's time a step in these phases: of lines of a row and a category."""

    def found_s(line: tuple[CaseRow, str]) -> float | None:
        row, category = line
        assert row.profile is not None
        found = category_ns(row.profile, phases).get(category)
        return None if found is None else found * NS / row.profile.n_steps

    return Value(name, "s", found_s)


def shares(row: CaseRow) -> dict[str, float]:
    """Each category's share of kernel time, the largest first."""
    totals = {} if row.profile is None else category_ns(row.profile)
    return {name: ratio(ns, sum(totals.values())) or 0.0 for name, ns in totals.items()}


def bars(view: View[Case]) -> Iterator[Plot]:
    """The categories of each size at its longest sequence, for each pass."""
    for pass_, name in NAMES.items():
        told = [(model(row), shares(row)) for row in longest(view) if pass_of(row) == pass_]
        totals: Counter[str] = Counter()
        for _, each in told:
            totals.update(each)
        yield Plot(
            title=f"{noun(view).capitalize()} time by category, {name}",
            kind="bars",
            x_label="category",
            y_label=f"share of {noun(view)} time",
            x_unit="text",
            y_unit="share",
            series=values.series(
                (of, Mark(x=x, y=each[category], label=category))
                for of, each in told
                for x, (category, _) in enumerate(totals.most_common(MOST_BARS))
                if category in each
            ),
        )


def curve(view: View[Case]) -> Iterator[Plot]:
    """The matmuls' share by length."""
    return plot(
        f"Share of matmuls in {noun(view)} time",
        SEQ_LEN,
        Value(f"share of {noun(view)} time", "share", matmul_share),
        lambda row: f"{model(row)}, {NAMES[pass_of(row)]}",
        log="x",
    )(view)


def matmuls(view: View[Case]) -> Iterator[Conclusion]:
    """How much of the time is matmuls, for each size at its longest sequence."""
    both = values.largest(
        both_passes(view), lambda each: model(each[0]), lambda each: seq_len(each[0])
    )
    for training, inference in both:
        told, work = Sentence(), training.point.case.workload
        size = f"{model(training)} {work.batch_size} × {work.seq_len}"
        yield from told.end(
            f"Matmuls take {said(told, 'inference', inference)} of {noun(view)} time in inference, "
            f"{said(told, 'passes', training, PASSES)} in forward and backward, and "
            f"{said(told, 'step', training)} in a whole training step of {size}."
        )


def said(told: Sentence, name: str, row: CaseRow, phases: Sequence[WorkPhase] = PHASES) -> str:
    """The matmuls' share in these phases as text."""
    return told(f"share of matmuls, {name}", matmul_share(row, phases), "share", row.profile)


def spread(view: View[Case]) -> Iterator[Conclusion]:
    """Where matmuls take least and most, over every case that was profiled."""
    if len(found := known(view.rows, matmul_share)) > 1:
        told = Sentence()
        n = told.count("cases", len(found), (row.profile for _, row in found))
        (low, first), (high, last) = least(found), most(found)
        yield from told.end(
            f"Over {n} cases matmuls take from "
            f"{told('least share of matmuls', low, 'share', first.profile)} of {noun(view)} time "
            f"({place(first.point.case)}) to "
            f"{told('largest share of matmuls', high, 'share', last.profile)} ({place(last.point.case)})."
        )


def after_matmuls(view: View[Case]) -> Iterator[Conclusion]:
    """What takes most beside matmuls at each longest sequence: a category, and one kernel of a phase."""
    for row in longest(view):
        others = [(share, name) for name, share in shares(row).items() if name != MATMUL]
        found = [each for each in kernels(row) if is_no_matmul(each)]
        if row.profile is None or not others or not found:
            continue
        told, (share, category), kernel = Sentence(), others[0], max(found, key=total_ns)
        of_category = told(f"share of {category}", share, "share", row.profile)
        of_kernel = ratio(kernel.total_ns, work_ns(row.profile))
        phase = f" in the phase {kernel.phase}" if kernel.phase else ""
        yield from told.end(
            f"Beside matmuls most of {place(row.point.case)} goes to {category} {noun(view)}s, "
            f"{of_category}; the one that takes most is {kernel.name}{phase}: "
            f"{told(f'share of {kernel.name}', of_kernel, 'share', row.profile)} in "
            f"{told('instances', kernel.n, 'count', row.profile)} instances over "
            f"{told('profiled steps', row.profile.n_steps, 'count', row.profile)} steps."
        )


def profiling(view: View[Case]) -> Iterator[Conclusion]:
    """What the profiler cost: the least and the most."""
    if found := known(view.rows, over_plain):
        told = Sentence()
        (low, first), (high, last) = least(found), most(found)
        over = "profiled over plain step"
        yield from told.end(
            "Under the profiler a step takes from "
            f"{told(f'{over}, least', low, 'ratio', first.measurement, first.profile)} "
            f"({place(first.point.case)}) to "
            f"{told(f'{over}, most', high, 'ratio', last.measurement, last.profile)} "
            f"({place(last.point.case)}) of its time by the plain timer."
        )


def notes(view: View[Case]) -> Iterator[str]:
    """What a profile is of."""
    work = noun(view)
    yield (
        f"Each profile is of {N_STEPS} steps of a warm case. Shares are of the durations of "
        f"{work}s, copies and sets by the driver left out; matmuls are the {work}s of that "
        "category, without fused attention."
    )
    yield (
        f"The {work}s one by one are of the longest sequence of each size and pass; the record "
        "has those of all."
    )


STUDY = Study(
    title="Which kernels take a step's time, and how much of them are matmuls?",
    points=points,
    tables=(times, matmul_shares, top, categories),
    plots=(bars, curve),
    claims=(matmuls, spread, after_matmuls, profiling),
    notes=notes,
)
