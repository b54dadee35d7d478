"""The grid of `attention-parts`, each case with its time and the time of its parts."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from peakward.records.case import DeviceType, OperatorCase
from peakward.records.measurement import Measurement
from peakward.records.profile import CaseProfile
from peakward.studies.attention_parts.times import Direction, PartTimes, part_times
from peakward.studies.readings import Planned, Readings
from peakward.studies.setting import Setting

PRECISIONS: dict[DeviceType, tuple[Literal["fp32", "bf16"], ...]] = {
    "cpu": ("fp32",),
    "cuda": ("fp32", "bf16"),
}
BETWEEN = 512
"""A curve over lengths needs a third one."""
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One case, timed and profiled."""

    case: OperatorCase
    measurement: Measurement | None
    profile: CaseProfile | None

    def times(self, direction: Direction) -> PartTimes | None:
        """Of one step; None where the case has no profile, or that no attention."""
        return None if self.profile is None else part_times(self.profile, direction)


def plan(setting: Setting) -> tuple[Planned, ...]:
    """Heads of each model × sequence × precision, forward and backward; models with equal heads
    count once."""
    grid = setting.grid
    cases = (
        OperatorCase(
            batch_size=grid.batch_size,
            n_heads=shape.n_heads,
            seq_len=seq_len,
            head_dim=shape.head_dim,
            pass_="forward_backward",
            precision=precision,
            device=setting.device,
        )
        for shape in grid.models
        for precision in PRECISIONS[setting.device]
        for seq_len in _seq_lens(setting)
    )
    return tuple((case, setting.protocol(phases=False)) for case in dict.fromkeys(cases))


def _seq_lens(setting: Setting) -> Sequence[int]:
    own = setting.grid.seq_lens
    return own if setting.scope.seq_lens else sorted({*own, BETWEEN})


def read(readings: Readings, setting: Setting) -> tuple[Cell, ...]:
    """The grid as far as it was run."""
    return tuple(
        Cell(
            case=case,
            measurement=readings.find((case, protocol)),
            profile=readings.profile(case),
        )
        for case, protocol in plan(setting)
        if isinstance(case, OperatorCase)
    )


def longest(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """Of each heads and precision the longest sequence whose parts are known."""
    found: dict[tuple[int, int, str], Cell] = {}
    for cell in sorted(cells, key=lambda each: each.case.seq_len):
        if cell.times("forward") is not None:
            found[heads(cell.case)] = cell
    return tuple(cell for cell in cells if cell in found.values())


def heads(case: OperatorCase) -> tuple[int, int, str]:
    """What cases of one curve share: number of heads, their width, precision."""
    return case.n_heads, case.head_dim, case.precision


def place(case: OperatorCase) -> str:
    """For a sentence: "attention of 12 heads of 64 over 4 × 1024 in bf16"."""
    return (
        f"attention of {case.n_heads} heads of {case.head_dim} over {case.batch_size} × "
        f"{case.seq_len} in {case.precision}"
    )
