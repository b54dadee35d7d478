"""The grid of `checkpointing`: size × sequence × what is recomputed, in a train step."""

from typing import get_args

import msgspec

from peakward.prediction.flops import recomputed_flops, step_flops
from peakward.records.case import Checkpointing, ModelCase, Precision
from peakward.records.measurement import Measurement
from peakward.records.memory import MemoryPhase
from peakward.records.model_shape import ModelShape
from peakward.studies.cases import model_case, with_levers
from peakward.studies.peaks import phase_of
from peakward.studies.readings import Planned, Readings, median_s, peak_bytes, ratio
from peakward.studies.setting import Setting
from peakward.studies.speedup import Speedup

MODES: tuple[Checkpointing, ...] = get_args(Checkpointing)


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A train step under a mode, beside the same with everything kept."""

    case: ModelCase
    measurement: Measurement | None
    plain: Measurement | None

    @property
    def mode(self) -> Checkpointing:
        """What is recomputed."""
        return self.case.configuration.checkpointing

    @property
    def speedup(self) -> Speedup:
        """Over keeping everything: below 1 is the price."""
        return Speedup(base=self.plain, candidate=self.measurement)

    @property
    def time_ratio(self) -> float | None:
        """Step time over that of keeping everything."""
        return ratio(median_s(self.measurement), median_s(self.plain))

    @property
    def peak_share(self) -> float | None:
        """Peak memory over that of keeping everything."""
        return ratio(peak_bytes(self.measurement), peak_bytes(self.plain))

    @property
    def phase(self) -> MemoryPhase | None:
        """In which its peak is; None where that is not known."""
        return phase_of(self.measurement)

    @property
    def plain_phase(self) -> MemoryPhase | None:
        """In which the peak of keeping everything is; None where that is not known."""
        return phase_of(self.plain)

    @property
    def recomputed_flops(self) -> float:
        """What the mode computes again, in FLOPs a step."""
        return recomputed_flops(self.case)

    @property
    def recomputed_share(self) -> float | None:
        """Of the model FLOPs of the step."""
        return ratio(self.recomputed_flops, step_flops(self.case))


def case(setting: Setting, shape: ModelShape, seq_len: int, mode: Checkpointing) -> ModelCase:
    """A train step as one would train here: flash attention, and bf16-mixed on a GPU that has it."""
    return _in_precision(setting, shape, seq_len, mode, precision(setting))


def precision(setting: Setting) -> Precision:
    """The user's first choice, or bf16-mixed where the device is a GPU that has it, or fp32."""
    if setting.scope.precisions:
        return setting.scope.precisions[0]
    if setting.device == "cpu":
        return "fp32"
    grid = setting.grid
    wanted = _in_precision(setting, grid.models[0], grid.seq_lens[0], "none", "bf16-mixed")
    return "bf16-mixed" if setting.obstacle(wanted) is None else "fp32"


def planned(case: ModelCase, setting: Setting) -> Planned:
    """How a case of the grid is measured."""
    return case, setting.protocol(phases=False)


def plan(setting: Setting) -> tuple[Planned, ...]:
    """The grid."""
    return tuple(planned(each, setting) for each in _cases(setting))


def cells(readings: Readings, setting: Setting) -> tuple[Cell, ...]:
    """The grid, with what was measured of it."""
    return tuple(
        Cell(
            case=each,
            measurement=readings.find(planned(each, setting)),
            plain=readings.find(planned(with_levers(each, checkpointing="none"), setting)),
        )
        for each in _cases(setting)
    )


def _cases(setting: Setting) -> tuple[ModelCase, ...]:
    return tuple(
        case(setting, shape, seq_len, mode)
        for shape in setting.grid.models
        for seq_len in setting.grid.seq_lens
        for mode in MODES
    )


def _in_precision(
    setting: Setting, shape: ModelShape, seq_len: int, mode: Checkpointing, precision: Precision
) -> ModelCase:
    return model_case(
        shape,
        setting.grid.batch_size,
        seq_len,
        "train_step",
        setting.device,
        precision=precision,
        attention="sdpa",
        checkpointing=mode,
    )
