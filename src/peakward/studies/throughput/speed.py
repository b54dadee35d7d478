"""The grid of tokens/s: size × sequence × precision × pass."""

import msgspec

from peakward.records.case import ModelCase, Pass, Precision
from peakward.records.measurement import Measurement
from peakward.studies.cases import model_case, with_levers
from peakward.studies.readings import Planned, Readings
from peakward.studies.setting import Setting
from peakward.studies.speedup import Speedup

BASE: Precision = "fp32"
PRECISIONS: tuple[Precision, ...] = (BASE, "bf16-mixed", "bf16")
PASSES: tuple[Pass, ...] = ("forward", "train_step")


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A workload in one precision, beside the same in fp32."""

    case: ModelCase
    measurement: Measurement | None
    base: Measurement | None

    @property
    def speedup(self) -> Speedup:
        """Over fp32."""
        return Speedup(base=self.base, candidate=self.measurement)


def precisions(setting: Setting) -> tuple[Precision, ...]:
    """Those of the scope, fp32 always first: it is what the others are held against."""
    return tuple(dict.fromkeys((BASE, *(setting.scope.precisions or PRECISIONS))))


def cases(setting: Setting) -> tuple[ModelCase, ...]:
    """Every case that this machine can run, in fp32 and in each other precision."""
    return tuple(case for case in _wanted(setting) if setting.obstacle(case) is None)


def refusals(setting: Setting) -> tuple[str, ...]:
    """Why precisions were left out."""
    return setting.refusals(_wanted(setting))


def _wanted(setting: Setting) -> tuple[ModelCase, ...]:
    grid = setting.grid
    return tuple(
        model_case(shape, grid.batch_size, seq_len, pass_, setting.device, precision=precision)
        for shape in grid.models
        for pass_ in PASSES
        for seq_len in grid.seq_lens
        for precision in precisions(setting)
    )


def planned(case: ModelCase, setting: Setting) -> Planned:
    """How a case of this study is measured."""
    return case, setting.protocol(phases=False)


def plan(setting: Setting) -> tuple[Planned, ...]:
    """The grid."""
    return tuple(planned(case, setting) for case in cases(setting))


def read(readings: Readings, setting: Setting) -> tuple[Cell, ...]:
    """The grid's measurements, each with its fp32 counterpart."""
    return tuple(
        Cell(
            case=case,
            measurement=readings.find(planned(case, setting)),
            base=readings.find(planned(with_levers(case, precision=BASE), setting)),
        )
        for case in cases(setting)
    )
