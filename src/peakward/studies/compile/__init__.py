"""Study `compile`: eager against torch.compile, and changing shapes against padding.

Attention alone, forward and the whole step by size, in each mode of torch.compile, and in tf32;
compile time and the number of steps that pays it back; graph breaks and recompilations with their
reasons. Then steps whose sequence length changes, for compile and for CUDA graphs of the step.
"""

import math
from collections.abc import Iterator
from typing import Any, Literal, cast

import msgspec

from peakward.prediction.parameters import n_parameters
from peakward.records.case import Compile, ModelCase, OperatorCase
from peakward.records.model_shape import ModelShape
from peakward.records.study import Conclusion, Table
from peakward.studies import values
from peakward.studies.cases import model_case
from peakward.studies.claims import Sentence, losses, sources
from peakward.studies.claims import speeds as speedups
from peakward.studies.compile import shapes
from peakward.studies.compile.shapes import report
from peakward.studies.engine import Point, Row, Study, View
from peakward.studies.readings import Planned, distinct, median_s, ratio, step_s, time
from peakward.studies.setting import Setting
from peakward.studies.values import INTERVAL, PEAK, STATUS, VERDICT, Value, plot, table, text

Subject = Literal["attention", "forward", "train_step"]
SUBJECTS: tuple[Subject, ...] = ("attention", "forward", "train_step")
SEQ_LEN = {"small": 128, "corners": 512, "full": 512}
"""The row goes by size: one length, where the user gives none."""
NEVER = "never"


class Mode(msgspec.Struct, frozen=True, kw_only=True):
    """A precision under a mode of torch.compile."""

    precision: Literal["fp32", "tf32"] = "fp32"
    compile: Compile = "none"

    @property
    def name(self) -> str:
        """For a table: "eager", "compile default", "tf32 eager"."""
        compiled = "eager" if self.compile == "none" else f"compile {self.compile}"
        return compiled if self.precision == "fp32" else f"{self.precision} {compiled}"

    @property
    def base(self) -> str:
        """What it is held against: compiled against eager, and tf32 eager against fp32's."""
        if self.compile == "none" or self.precision == "fp32":
            return "fp32 eager"
        return f"{self.precision} eager"


EAGER = Mode()
DEFAULT_MODES = (EAGER, Mode(compile="default"))
"""All that a CPU runs: `reduce-overhead` is CUDA graphs, and autotuning there builds C++ for minutes."""
MODES = (
    *DEFAULT_MODES,
    Mode(compile="reduce-overhead"),
    Mode(compile="max-autotune"),
    Mode(precision="tf32"),
    Mode(precision="tf32", compile="default"),
)


class Cell(Point[OperatorCase | ModelCase], frozen=True, kw_only=True):
    """A subject of one size under a mode, held against eager in the same precision."""

    subject: Subject
    shape: ModelShape
    mode: Mode
    in_fp32: Planned
    """Eager in fp32."""


CellRow = Row[Cell]


def points(setting: Setting) -> Iterator[Cell | shapes.Varied]:
    """Size × subject × mode; then engine × padding of changing lengths.

    Everything for the first size. Of the others `corners` has eager and the default mode, as autotuning the
    largest takes minutes, and `small` their train steps, at 20 s a compilation.
    """
    first, *others = setting.grid.models
    runs, scope = modes(setting), setting.scope.name
    fewer = tuple(mode for mode in runs if mode in DEFAULT_MODES) if scope != "full" else runs
    subjects = SUBJECTS[-1:] if scope == "small" else SUBJECTS
    wanted = (
        *((first, subject, mode) for subject in SUBJECTS for mode in runs),
        *((shape, subject, mode) for shape in others for subject in subjects for mode in fewer),
    )
    for shape, subject, mode in wanted:
        case, protocol = _planned(setting, shape, subject, mode)
        yield Cell(
            case=case,
            protocol=protocol,
            base=_planned(setting, shape, subject, Mode(precision=mode.precision)),
            # Autotuning the fp32 train step of `small` was not done after six minutes on an H200.
            is_last=mode.compile == "max-autotune",
            subject=subject,
            shape=shape,
            mode=mode,
            in_fp32=_planned(setting, shape, subject, EAGER),
        )
    yield from shapes.points(setting, seq_len(setting))


def modes(setting: Setting) -> tuple[Mode, ...]:
    """The modes that this machine can run."""
    wanted = MODES if setting.device == "cuda" else DEFAULT_MODES
    return tuple(mode for mode in wanted if setting.obstacle(_forward(setting, mode)) is None)


def refusals(setting: Setting) -> tuple[str, ...]:
    """Why modes were left out."""
    return setting.refusals(_forward(setting, mode) for mode in MODES)


def seq_len(setting: Setting) -> int:
    """The one length of the study: the user's longest, or the scope's."""
    return max(setting.scope.seq_lens, default=SEQ_LEN[setting.scope.name])


def _planned(
    setting: Setting, shape: ModelShape, subject: Subject, mode: Mode
) -> tuple[OperatorCase | ModelCase, Any]:
    # Compile time is that of a process that has compiled nothing before.
    protocol = setting.protocol(phases=False, fresh_process=mode.compile != "none")
    if subject != "attention":
        return _model_case(setting, shape, subject, mode), protocol
    case = OperatorCase(
        batch_size=setting.grid.batch_size,
        n_heads=shape.n_heads,
        seq_len=seq_len(setting),
        head_dim=shape.head_dim,
        precision=mode.precision,
        compile=mode.compile,
        device=setting.device,
    )
    return case, protocol


def _model_case(
    setting: Setting, shape: ModelShape, pass_: Literal["forward", "train_step"], mode: Mode
) -> ModelCase:
    return model_case(
        shape,
        setting.grid.batch_size,
        seq_len(setting),
        pass_,
        setting.device,
        precision=mode.precision,
        compile=mode.compile,
    )


def _forward(setting: Setting, mode: Mode) -> ModelCase:
    return _model_case(setting, setting.grid.models[0], "forward", mode)


def cells(view: View[Any]) -> list[CellRow]:
    """The cases of fixed shape."""
    return [cast(CellRow, row) for row in view.rows if isinstance(row.point, Cell)]


def payback_steps(row: CellRow) -> float | None:
    """Compile time over the time saved a step; infinite where compiled is not measurably faster:
    the intervals of the medians overlap, or it is slower."""
    made, eager = report(row), time(row.base)
    if made is None or eager is None or row.time is None:
        return None
    saved_s = eager.estimate - row.time.estimate
    return made.compile_s / saved_s if saved_s > 0 and distinct(eager, row.time) else math.inf


def held_against(row: CellRow, view: View[Any]) -> CellRow:
    """The row beside what its mode is held against: for tf32 eager that is fp32's, not itself."""
    if row.point.mode.compile != "none":
        return row
    return msgspec.structs.replace(row, base=view.find(row.point.in_fp32))


def speed(view: View[Any]) -> Iterator[Conclusion]:
    """What each mode gains on each subject."""
    rows = [held_against(row, view) for row in cells(view) if row.point.mode != EAGER]
    for group in values.groups(rows, lambda row: row.point.mode):
        mode = group[0].point.mode
        for of in values.groups(group, lambda row: row.point.subject):
            yield from speedups(of, f"{mode.name}, {of[0].point.subject},", mode.base)
        yield from losses(group, mode.name, mode.base)


def payback(view: View[Any]) -> Iterator[Conclusion]:
    """After how many train steps each mode has paid for its compilation, by size."""
    trained = [row for row in cells(view) if row.point.subject == "train_step"]
    for group in values.groups(trained, lambda row: row.point.mode):
        told, texts = Sentence(), []
        for row in group:
            steps, made, name = payback_steps(row), report(row), row.point.shape.name
            if steps is None or made is None:
                continue
            compiling = told(f"compile time, {name}", made.compile_s, "s", row.measurement)
            if math.isfinite(steps):
                both = (row.measurement, row.base)
                n = told(f"steps, {name}", math.ceil(steps), "count", *both)
                texts.append(f"after {n} of {name} ({compiling} to compile)")
            else:
                texts.append(f"never in {name} ({compiling} to compile, and not measurably faster)")
        if texts:
            yield from told.end(
                f"{group[0].point.mode.name} pays back, in train steps: {'; '.join(texts)}."
            )


def graphs(view: View[Any]) -> Iterator[Conclusion]:
    """Breaks and recompilations over the whole grid."""
    compiled = [row for row in cells(view) if report(row) is not None]
    if compiled:
        told, behind = Sentence(), sources(compiled)
        made = [found for row in compiled if (found := report(row)) is not None]
        n = told.count("compiled cases", len(made), behind)
        breaks = told.count("graph breaks", sum(each.n_graph_breaks for each in made), behind)
        again = told.count("recompilations", sum(each.n_recompiles for each in made), behind)
        yield from told.end(
            f"Over {n} compiled cases of fixed shape there were {breaks} graph breaks and {again} "
            "recompilations."
        )


def counted(name: str, field: str) -> Value:
    """A number of what torch.compile did."""
    return Value(name, "count", lambda row: getattr(report(row), field, None))


def reasons(row: Row[Any]) -> str | None:
    """Why torch.compile broke off or began again."""
    made = report(row)
    return None if made is None else "; ".join(made.reasons) or None


def whole(steps: float | None) -> int | str | None:
    """For a table."""
    if steps is None:
        return None
    return math.ceil(steps) if math.isfinite(steps) else NEVER


GRAPHS = (
    counted("graphs", "n_graphs"),
    counted("graph breaks", "n_graph_breaks"),
    counted("recompilations", "n_recompiles"),
    counted("from disk cache", "n_cached_graphs"),
    text("reasons", reasons),
)
SUBJECT = (
    text("model", lambda row: row.point.shape.name),
    text("subject", lambda row: row.point.subject),
    text("mode", lambda row: row.point.mode.name),
)


def speeds(view: View[Any]) -> Iterator[Table]:
    """Times by mode, and when compiling pays."""
    yield from table(
        "Eager against torch.compile",
        (
            *SUBJECT,
            STATUS,
            *INTERVAL,
            Value("speed over eager", "ratio", lambda row: row.factor),
            Value(
                "speed over fp32 eager",
                "ratio",
                lambda row: ratio(median_s(view.find(row.point.in_fp32)), row.median_s),
            ),
            Value("compile time", "s", lambda row: getattr(report(row), "compile_s", None)),
            Value("pays back after steps", "count", lambda row: whole(payback_steps(row))),
            PEAK,
            VERDICT,
        ),
        cells,
        note="Compile time is the warm-up beyond what as many steady steps take, in a process that has "
        "compiled nothing before. It pays back after compile time over time saved a step.",
    )(view)


def changing(view: View[Any]) -> Iterator[Table]:
    """Throughput under changing lengths, padded or not."""
    rows = shapes.rows(view)
    plain = shapes.plain_row(rows)
    lengths = rows[0].point.case.workload.varying_seq_lens if rows else ()

    def paid(row: shapes.VariedRow) -> int | str | None:
        """Nothing of what neither compiles nor captures."""
        if plain is None or not row.point.compiles:
            return None
        return whole(shapes.steps_to_pay(row, plain))

    yield from table(
        "Changing sequence lengths against padding",
        (
            text("engine", lambda row: row.name),
            text("lengths", lambda row: row.point.lengths),
            STATUS,
            Value("mean step", "s", lambda row: step_s(row.measurement)),
            values.TOKENS_PER_S,
            Value("start", "s", shapes.start_s),
            Value("pays back after steps", "count", paid),
            *GRAPHS,
            PEAK,
        ),
        shapes.rows,
        note=f"Steps go through the lengths {', '.join(map(str, lengths))}. Padding tokens are not "
        "counted as throughput. The start is the warm-up of a fresh process beyond what as many steady "
        "steps take, compilations and captures included; it pays back beside eager steps of changing "
        "lengths, whose own start is taken off.",
    )(view)


STUDY = Study(
    title="What does torch.compile gain, and when does it pay?",
    points=points,
    tables=(
        speeds,
        table(
            "Graphs, breaks and recompilations",
            (*SUBJECT, *GRAPHS),
            lambda view: (row for row in cells(view) if report(row) is not None),
        ),
        changing,
    ),
    plots=(
        plot(
            "Speed over eager by size",
            Value("parameters", "count", lambda row: n_parameters(row.point.shape)),
            Value("speed over eager in the same precision", "ratio", lambda row: row.factor),
            lambda row: f"{row.point.subject}, {row.point.mode.name}",
            lambda view: (row for row in cells(view) if row.point.mode.compile != "none"),
            names=lambda row: row.point.shape.name,
            log="x",
        ),
    ),
    claims=(speed, payback, graphs, shapes.claims),
    notes=lambda view: refusals(view.setting),
)
