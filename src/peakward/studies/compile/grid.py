"""The grid of `compile`: attention alone, forward and whole step, eager and compiled, by size."""

from typing import Literal

import msgspec

from peakward.records.case import Case, Compile, ModelCase, OperatorCase
from peakward.records.measurement import CompileReport, Measurement
from peakward.records.model_shape import ModelShape
from peakward.studies.cases import model_case
from peakward.studies.readings import Planned, Readings, distinct, time
from peakward.studies.setting import Setting
from peakward.studies.speedup import Speedup

Subject = Literal["attention", "forward", "train_step"]
SUBJECTS: tuple[Subject, ...] = ("attention", "forward", "train_step")
SEQ_LEN = {"small": 128, "corners": 512, "full": 512}
"""The row goes by size: one length, where the user gives none."""


class Mode(msgspec.Struct, frozen=True, kw_only=True):
    """A precision under a mode of torch.compile."""

    precision: Literal["fp32", "tf32"] = "fp32"
    compile: Compile = "none"

    @property
    def name(self) -> str:
        """For a table: "eager", "compile default", "tf32 eager"."""
        compiled = "eager" if self.compile == "none" else f"compile {self.compile}"
        return compiled if self.precision == "fp32" else f"{self.precision} {compiled}"


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


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A subject of one size under a mode, beside eager."""

    subject: Subject
    shape: ModelShape
    mode: Mode
    case: Case
    measurement: Measurement | None
    eager: Measurement | None
    """In the same precision."""
    baseline: Measurement | None
    """Eager in fp32."""

    @property
    def speedup(self) -> Speedup:
        """Over eager in the same precision."""
        return Speedup(base=self.eager, candidate=self.measurement)

    @property
    def report(self) -> CompileReport | None:
        """What torch.compile did; None in eager, or where the case did not end `ok`."""
        if self.measurement is None or self.measurement.status != "ok":
            return None
        return self.measurement.compile

    @property
    def payback_steps(self) -> float | None:
        """Compile time over the time saved a step; infinite where compiled is not measurably faster:
        the intervals of the medians overlap, or it is slower."""
        eager, compiled = time(self.eager), time(self.measurement)
        if self.report is None or eager is None or compiled is None:
            return None
        saved_s = eager.estimate - compiled.estimate
        faster = saved_s > 0 and distinct(eager, compiled)
        return self.report.compile_s / saved_s if faster else float("inf")


def cells(readings: Readings, setting: Setting) -> tuple[Cell, ...]:
    """The grid, with what was measured of it."""
    return tuple(
        Cell(
            subject=subject,
            shape=shape,
            mode=mode,
            case=_case(setting, shape, subject, mode),
            measurement=readings.find(_planned(setting, shape, subject, mode)),
            eager=readings.find(_planned(setting, shape, subject, Mode(precision=mode.precision))),
            baseline=readings.find(_planned(setting, shape, subject, EAGER)),
        )
        for shape, subject, mode in _grid(setting)
    )


def plan(setting: Setting) -> tuple[Planned, ...]:
    """Size × subject × mode."""
    # Two sizes with the same heads have the same attention alone.
    return tuple(dict.fromkeys(_planned(setting, *each) for each in _grid(setting)))


def _grid(setting: Setting) -> tuple[tuple[ModelShape, Subject, Mode], ...]:
    """Everything for the first size. Of the others `corners` has eager and the default mode, as
    autotuning the largest takes minutes, and `small` their train steps, at 20 s a compilation."""
    first, *others = setting.grid.models
    runs, scope = modes(setting), setting.scope.name
    fewer = tuple(mode for mode in runs if mode in DEFAULT_MODES) if scope != "full" else runs
    subjects = SUBJECTS[-1:] if scope == "small" else SUBJECTS
    return (
        *((first, subject, mode) for subject in SUBJECTS for mode in runs),
        *((shape, subject, mode) for shape in others for subject in subjects for mode in fewer),
    )


def modes(setting: Setting) -> tuple[Mode, ...]:
    """The modes that this machine can run."""
    wanted = MODES if setting.device == "cuda" else DEFAULT_MODES
    shape = setting.grid.models[0]
    return tuple(
        mode
        for mode in wanted
        if setting.obstacle(_model_case(setting, shape, "forward", mode)) is None
    )


def refusals(setting: Setting) -> tuple[str, ...]:
    """Why modes were left out."""
    shape = setting.grid.models[0]
    return setting.refusals(_model_case(setting, shape, "forward", mode) for mode in MODES)


def seq_len(setting: Setting) -> int:
    """The one length of the study: the user's longest, or the scope's."""
    return max(setting.scope.seq_lens, default=SEQ_LEN[setting.scope.name])


def _planned(setting: Setting, shape: ModelShape, subject: Subject, mode: Mode) -> Planned:
    # Compile time is that of a process that has compiled nothing before.
    fresh = mode.compile != "none"
    protocol = setting.protocol(phases=False, fresh_process=fresh)
    return _case(setting, shape, subject, mode), protocol


def _case(setting: Setting, shape: ModelShape, subject: Subject, mode: Mode) -> Case:
    if subject != "attention":
        return _model_case(setting, shape, subject, mode)
    return OperatorCase(
        batch_size=setting.grid.batch_size,
        n_heads=shape.n_heads,
        seq_len=seq_len(setting),
        head_dim=shape.head_dim,
        precision=mode.precision,
        compile=mode.compile,
        device=setting.device,
    )


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
