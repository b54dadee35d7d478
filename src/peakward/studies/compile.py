"""Study `compile`: eager against torch.compile, and changing shapes against padding.

Attention alone, forward and the whole step by size, in each mode of torch.compile, and in tf32; then steps
whose sequence length changes, for compile and for CUDA graphs of the step.
"""

import math
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any, cast

import msgspec

from peakward.prediction.parameters import n_parameters
from peakward.records.case import ModelCase, OperatorCase, Padding, Pass
from peakward.records.measurement import Protocol
from peakward.records.model_shape import ModelShape
from peakward.records.study import Conclusion
from peakward.studies import values
from peakward.studies.cases import model_case, with_levers, with_work
from peakward.studies.claims import Sentence, losses, sources, speeds
from peakward.studies.engine import Point, Row, Study, View, time_ratio
from peakward.studies.readings import Planned, compile_report, mean_s, start_s, time
from peakward.studies.setting import Setting
from peakward.studies.values import Value, plot, table, text

SUBJECTS = ("attention", "forward", "train_step")
SEQ_LEN = {"small": 128, "corners": 512, "full": 512}
"""The row goes by size: one length, where the user gives none."""
MODES: dict[str, dict[str, Any]] = {
    "eager": {},
    "compile default": {"compile": "default"},
    "compile reduce-overhead": {"compile": "reduce-overhead"},
    "compile max-autotune": {"compile": "max-autotune"},
    "tf32 eager": {"precision": "tf32"},
    "tf32 compile default": {"precision": "tf32", "compile": "default"},
}
EAGER, *_ = MODES
ON_CPU = ("eager", "compile default")
"""`reduce-overhead` is CUDA graphs, and autotuning on a CPU builds C++ for minutes."""
BASES = {"tf32 compile default": "tf32 eager"}
"""The mode that each of these is held against; all others are held against eager in fp32."""
ENGINES = {**{name: MODES[name] for name in ON_CPU}, "cuda-graphs": {"cuda_graphs": True}}
FIXED = "fixed lengths"
PADDINGS: dict[str, Padding] = {"changing lengths": "none", "padded lengths": "to-seq-len"}
EIGHTHS = (8, 3, 6, 1, 5, 2, 7, 4)
"""The lengths of a cycle, in eighths of the longest: all from short to long, out of order."""
N_CYCLES_WARMUP = 2
"""torch.compile recompiles with dynamic sizes at the second length, and graphs are captured at
each new one: the first cycle has them all, the second shows that they are over."""
N_CYCLES_TIMED = 4


class Cell(Point[OperatorCase | ModelCase], frozen=True, kw_only=True):
    """A subject of one size under a mode or an engine, which is its name. Its base is what its mode is held
    against; of changing and padded lengths it is eager steps of changing ones."""

    shape: ModelShape
    subject: str
    lengths: str = FIXED
    """FIXED, or one of PADDINGS."""
    in_fp32: Planned | None = None
    """Eager in fp32, of a fixed length."""

    @property
    def compiles(self) -> bool:
        """Whether something is compiled or captured as it starts."""
        return "compile" in self.name or self.name == "cuda-graphs"


CellRow = Row[Cell]


def points(setting: Setting) -> Iterator[Cell]:
    """Size × subject × mode; then engine × padding of changing lengths.

    Everything for the first size. Of the others `corners` has eager and the default mode, as autotuning the
    largest takes minutes, and `small` their train steps, at 20 s a compilation.
    """
    first, *others = setting.grid.models
    runs, scope = modes(setting), setting.scope.name
    fewer = [mode for mode in runs if mode in ON_CPU or scope == "full"]
    subjects = SUBJECTS[-1:] if scope == "small" else SUBJECTS
    for shape, subject, mode in (
        *product((first,), SUBJECTS, runs),
        *product(others, subjects, fewer),
    ):
        case, protocol = planned(setting, shape, subject, mode)
        yield Cell(
            case=case,
            protocol=protocol,
            name=mode,
            base=planned(setting, shape, subject, BASES.get(mode, EAGER)),
            # Autotuning the fp32 train step of `small` was not done after six minutes on an H200.
            is_last=mode == "compile max-autotune",
            subject=subject,
            shape=shape,
            in_fp32=planned(setting, shape, subject, EAGER),
        )
    yield from varied(setting)


def varied(setting: Setting) -> Iterator[Cell]:
    """Every engine that runs here × padding, on the smallest size, where overheads weigh most."""
    n_steps, grid, longest = N_CYCLES_TIMED * len(EIGHTHS), setting.grid, seq_len(setting)
    # Whole cycles, so that every length counts alike.
    protocol = setting.protocol(
        warmup_steps=N_CYCLES_WARMUP * len(EIGHTHS),
        min_steps=n_steps,
        max_steps=n_steps,
        phases=False,
        fresh_process=True,
    )
    # A CPU compiles a train step for a minute; the question is the same in a forward.
    pass_: Pass = "train_step" if setting.device == "cuda" else "forward"
    plain = model_case(grid.models[0], grid.batch_size, longest, pass_, setting.device)
    plain = with_work(plain, varying_seq_lens=tuple(max(1, longest * n // 8) for n in EIGHTHS))
    for engine, (lengths, padding) in product(ENGINES, PADDINGS.items()):
        case = with_levers(with_work(plain, padding=padding), **ENGINES[engine])
        if setting.obstacle(case) is None:
            yield Cell(
                case=case,
                protocol=protocol,
                name=engine,
                base=(plain, protocol),
                shape=plain.model,
                subject=pass_,
                lengths=lengths,
                timed=partial(mean_s, n_batches=N_CYCLES_TIMED),
            )


def planned(
    setting: Setting, shape: ModelShape, subject: str, mode: str
) -> tuple[OperatorCase | ModelCase, Protocol]:
    """A subject under a mode. Compile time is that of a process that has compiled nothing before."""
    n, length, device, levers = (
        setting.grid.batch_size,
        seq_len(setting),
        setting.device,
        MODES[mode],
    )
    protocol = setting.protocol(phases=False, fresh_process="compile" in levers)
    if subject != "attention":
        return model_case(shape, n, length, cast(Pass, subject), device, **levers), protocol
    sizes = OperatorCase(
        batch_size=n, n_heads=shape.n_heads, seq_len=length, head_dim=shape.head_dim, device=device
    )
    return msgspec.structs.replace(sizes, **levers), protocol


def forwards(setting: Setting) -> dict[str, ModelCase]:
    """A forward under each mode, by which is told whether the mode can run here."""
    grid = setting.grid
    plain = model_case(grid.models[0], grid.batch_size, seq_len(setting), "forward", setting.device)
    return {mode: with_levers(plain, **levers) for mode, levers in MODES.items()}


def modes(setting: Setting) -> tuple[str, ...]:
    """The modes that this machine can run."""
    own = MODES if setting.device == "cuda" else ON_CPU
    return tuple(mode for mode in own if setting.obstacle(forwards(setting)[mode]) is None)


def seq_len(setting: Setting) -> int:
    """The one length of the study: the user's longest, or the scope's."""
    return max(setting.scope.seq_lens, default=SEQ_LEN[setting.scope.name])


def cells(view: View[Cell]) -> list[CellRow]:
    """The cases of fixed shape."""
    return [row for row in view.rows if row.point.lengths == FIXED]


def changing(view: View[Cell]) -> list[CellRow]:
    """The steps of lengths that change or are padded."""
    return [row for row in view.rows if row.point.lengths != FIXED]


def payback_steps(row: CellRow) -> float | None:
    """Steps that make up for a start that is longer than the base's: infinitely many where a step is not
    measurably shorter. None where nothing is compiled or captured, or one of the two failed."""
    own_s = start_s(row.measurement) if row.point.compiles else None
    base_s = start_s(row.base)
    if own_s is None or base_s is None or row.time is None or row.base_time is None:
        return None
    if row.is_slower or not row.is_told_apart:
        return math.inf
    return max(0.0, own_s - base_s) / (row.base_time.estimate - row.time.estimate)


def paid(told: Sentence, row: CellRow) -> str | None:
    """Tells as text what a case takes to start, and after how many steps it has made up for a longer start
    than its base's; None where `payback_steps` is."""
    if (steps := payback_steps(row)) is None:
        return None
    what = f"{row.point.shape.name} {row.point.subject}, {row.point.lengths},"
    start = f"{told(f'start, {what}', start_s(row.measurement), 's', row.measurement)} to start"
    if not math.isfinite(steps):
        return f"{what} never ({start}, and not measurably faster)"
    return f"{what} after {told(f'steps, {what}', math.ceil(steps), 'count', *row.both)} steps ({start})"


def gains(view: View[Cell]) -> Iterator[Conclusion]:
    """Says what each mode gains on each subject."""
    for group in values.groups(cells(view), lambda row: row.name):
        mode = group[0].name
        if mode != EAGER:
            base = BASES.get(mode, EAGER)
            for of in values.groups(group, lambda row: row.point.subject):
                yield from speeds(of, f"{mode}, {of[0].point.subject},", base)
            yield from losses(group, mode, base)


def starts(view: View[Cell]) -> Iterator[Conclusion]:
    """When each mode has paid for its start; then which of changing and padded lengths starts longer."""
    trained = [row for row in cells(view) if row.point.subject == "train_step"]
    modes = values.groups((*trained, *changing(view)), lambda row: row.name)
    found = [(group, BASES.get(group[0].name, EAGER)) for group in modes]
    for ways in values.groups(changing(view), lambda row: row.name):
        cheap, dear = sorted(ways, key=lambda row: start_s(row.measurement) or 0.0)
        found.append(((dear.against(cheap),), cheap.point.lengths))
    for group, base in found:
        told = Sentence()
        if texts := list(filter(None, (paid(told, row) for row in group))):
            yield from told.end(
                f"{group[0].name} makes up for its start beside {base}: {'; '.join(texts)}."
            )


def compiled(view: View[Cell]) -> list[CellRow]:
    """The cases of which is known what torch.compile did."""
    return [row for row in view.rows if compile_report(row.measurement) is not None]


def graphs(view: View[Cell]) -> Iterator[Conclusion]:
    """Breaks and recompilations, over all cases of fixed, changing and padded lengths."""
    for rows in values.groups(compiled(view), lambda row: row.point.lengths):
        told, behind, counts = Sentence(), sources(rows), []
        for each in values.COMPILED:
            n = sum(int(each.number(row) or 0) for row in rows)
            counts.append(f"{each.name} {told.count(each.name, n, behind)}")
        n_cases = told.count("compiled cases", len(rows), behind)
        yield from told.end(
            f"Over {n_cases} compiled cases of {rows[0].point.lengths}: {', '.join(counts)}."
        )


def padding(view: View[Cell]) -> Iterator[Conclusion]:
    """Whether padding to one length beats letting it change, for each engine, once it is steady."""
    for free, padded in values.groups(changing(view), lambda row: row.name):
        yield from speeds([padded.against(free)], f"{free.name}, padded,", free.point.lengths)


def whole(row: CellRow) -> int | str | None:
    """Steps that pay the start, for a table."""
    if (steps := payback_steps(row)) is None:
        return None
    return math.ceil(steps) if math.isfinite(steps) else "never"


PAYS = Value("pays back after steps", "count", whole)
SUBJECT = (
    text("model", lambda row: row.point.shape.name),
    text("subject", lambda row: row.point.subject),
    text("mode", lambda row: row.name),
)
STUDY = Study(
    title="What does torch.compile gain, and when does it pay?",
    points=points,
    tables=(
        table(
            "Eager against torch.compile",
            (
                *SUBJECT,
                values.STATUS,
                *values.INTERVAL,
                Value("speed over eager", "ratio", lambda row: row.speed),
                Value(
                    "speed over fp32 eager",
                    "ratio",
                    lambda row: time_ratio(row.time, time(row.find(row.point.in_fp32))),
                ),
                Value(
                    "compile time",
                    "s",
                    lambda row: start_s(row.measurement) if row.point.compiles else None,
                ),
                PAYS,
                values.PEAK,
                values.VERDICT,
            ),
            cells,
            note="Compile time is the warm-up beyond what as many steady steps take, in a process that has "
            "compiled nothing before. It pays back after compile time over time saved a step.",
        ),
        table(
            "Graphs, breaks and recompilations",
            (*SUBJECT, *values.COMPILED, values.REASONS),
            lambda view: (row for row in compiled(view) if row.point.lengths == FIXED),
        ),
        table(
            "Changing sequence lengths against padding",
            (
                text("engine", lambda row: row.name),
                text("lengths", lambda row: row.point.lengths.removesuffix(" lengths")),
                values.STATUS,
                Value("mean step", "s", lambda row: row.time),
                values.TOKENS_PER_S,
                Value("start", "s", lambda row: start_s(row.measurement)),
                PAYS,
                *values.COMPILED,
                values.REASONS,
                values.PEAK,
            ),
            changing,
            note=lambda row: (
                f"Steps go through the lengths {', '.join(map(str, row.case.workload.varying_seq_lens))}. "
                "Padding tokens are not counted as throughput. The start is the warm-up of a fresh process "
                "beyond what as many steady steps take, compilations and captures included; it pays back "
                "beside eager steps of changing lengths, whose own start is taken off."
            ),
        ),
    ),
    plots=(
        plot(
            "Speed over eager by size",
            Value("parameters", "count", lambda row: n_parameters(row.point.shape)),
            Value("speed over eager in the same precision", "ratio", lambda row: row.speed),
            lambda row: f"{row.point.subject}, {row.name}",
            lambda view: (row for row in cells(view) if row.point.compiles),
            names=lambda row: row.point.shape.name,
            log="x",
        ),
    ),
    claims=(gains, starts, graphs, padding),
    notes=lambda view: view.setting.refusals(forwards(view.setting).values()),
)
