"""The grid of `flash`: precision × head dim × pass × length × way to compute it."""

from collections.abc import Sequence
from typing import get_args

import msgspec

from peakward.prediction.flops import step_flops
from peakward.records.case import OperatorCase, OperatorPass
from peakward.records.measurement import Interval
from peakward.studies.attention_arms import (
    BACKENDS,
    COMPILED,
    FLASH,
    FLASH_HOPPER,
    FLEX,
    NAIVE,
    ON_CPU,
    SDPA,
    Arm,
    Attempt,
    Precision,
    attempt,
    case,
    planned,
    products,
    studied,
)
from peakward.studies.readings import Planned, Readings, time
from peakward.studies.setting import Setting

BATCH_SIZE = 1
HEAD_DIMS = {"small": (64,), "corners": (64, 128), "full": (16, 32, 64, 128)}
SEQ_LENS = {
    "small": (128, 1024),
    "corners": (2**7, 2**12, 2**16),
    "full": tuple(2**power for power in range(7, 17)),
}
PASSES: tuple[OperatorPass, ...] = get_args(OperatorPass)
ARMS = (FLASH, FLASH_HOPPER, NAIVE, COMPILED, FLEX, SDPA, *BACKENDS)
FORWARDS: dict[OperatorPass, float] = {"forward": 1.0, "backward": 2.5, "forward_backward": 3.5}
"""FLOPs of a pass over the forward's, as FlashAttention is rated (Dao 2023, section 4.1)."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """An arm at one size and pass, and the roof above it."""

    arm: Arm
    precision: Precision
    attempt: Attempt
    roof_flops_per_s: float | None
    """Of the type that its products run as, over how many of them one product takes. None where that type
    is not known, or the calibration has no rate of it."""

    @property
    def head_dim(self) -> int:
        """Of the case."""
        return self.attempt.case.head_dim

    @property
    def seq_len(self) -> int:
        """Of the case."""
        return self.attempt.case.seq_len

    @property
    def pass_(self) -> OperatorPass:
        """Of the case."""
        return self.attempt.case.pass_

    @property
    def flops(self) -> float:
        """By `FORWARDS`."""
        forward = step_flops(msgspec.structs.replace(self.attempt.case, pass_="forward"))
        return (forward or 0.0) * FORWARDS[self.pass_]

    @property
    def rate(self) -> Interval | None:
        """FLOP/s; None where it has no time."""
        found = time(self.attempt.measurement)
        if found is None:
            return None
        return Interval(
            estimate=self.flops / found.estimate,
            low=self.flops / found.high,
            high=self.flops / found.low,
            level=found.level,
        )

    @property
    def roof_share(self) -> float | None:
        """Of the matmul rate; None where one of the two is unknown."""
        if self.rate is None or self.roof_flops_per_s is None:
            return None
        return self.rate.estimate / self.roof_flops_per_s


def plan(setting: Setting) -> tuple[Planned, ...]:
    """What can run here."""
    return tuple(
        planned(cell.attempt.case, setting)
        for cell in read(Readings(), setting)
        if cell.attempt.obstacle is None
    )


def read(readings: Readings, setting: Setting) -> tuple[Cell, ...]:
    """The grid, with what was measured of it, and why what cannot run was not."""
    return tuple(
        Cell(
            arm=arm,
            precision=precision,
            attempt=attempt(found, readings, setting),
            roof_flops_per_s=_roof(found, readings),
        )
        # What a run that is ended early should have: bf16 before fp32.
        for precision in reversed(studied(setting))
        for head_dim in HEAD_DIMS[setting.scope.name]
        for pass_ in PASSES
        for seq_len in setting.scope.seq_lens or SEQ_LENS[setting.scope.name]
        for arm in (ON_CPU if setting.device == "cpu" else ARMS)
        for found in (
            case(
                arm,
                precision,
                pass_,
                setting,
                batch_size=setting.scope.batch_size or BATCH_SIZE,
                seq_len=seq_len,
                head_dim=head_dim,
            ),
        )
    )


def _roof(found: OperatorCase, readings: Readings) -> float | None:
    how, calibration = products(found), readings.calibration
    if how is None or calibration is None:
        return None
    rate = calibration.matmul_flops_per_s(how.compute_type)
    return None if rate is None else rate / how.n_parts


def subject(cells: Sequence[Cell]) -> tuple[Arm, ...]:
    """Whom the study is about: our kernels; where neither can run, what torch chooses."""
    ran = {cell.arm.name for cell in cells if cell.attempt.obstacle is None}
    return tuple(arm for arm in (FLASH, FLASH_HOPPER) if arm.name in ran) or (SDPA,)


def groups(cells: Sequence[Cell]) -> tuple[tuple[Cell, ...], ...]:
    """Cells of one precision, head dim and pass."""
    found: dict[tuple[str, int, str], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell.precision, cell.head_dim, cell.pass_), []).append(cell)
    return tuple(tuple(each) for each in found.values())


def place(cell: Cell) -> str:
    """For a title or a sentence: "bf16, head dim 64, forward"."""
    return f"{cell.precision}, head dim {cell.head_dim}, {cell.pass_}"
