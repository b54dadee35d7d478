"""The grid of `attention`: precision × head dim × length × way to compute it."""

from collections.abc import Sequence

import msgspec

from peakward.records.case import OperatorPass
from peakward.studies.attention_arms import (
    BACKENDS,
    COMPILED,
    COMPILED_TF32,
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
    obstacle,
    planned,
    studied,
)
from peakward.studies.readings import Planned, Readings
from peakward.studies.setting import Setting

BATCH_SIZE = 8
HEAD_DIMS = {"small": (64,), "corners": (16, 128), "full": (16, 32, 64, 128)}
SEQ_LENS = {
    "small": (128, 512, 1024),
    "corners": (256, 4096, 16384),
    "full": (256, 1024, 4096, 8192, 16384),
}
"""Three at least, for an exponent."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """An arm at one size, forward and backward."""

    arm: Arm
    precision: Precision
    head_dim: int
    seq_len: int
    forward: Attempt
    backward: Attempt

    @property
    def held_bytes(self) -> int | None:
        """For backward; None where that did not run."""
        found = self.backward.measurement
        if found is None or found.status != "ok" or found.memory is None:
            return None
        return found.memory.held_for_backward_bytes

    @property
    def matrix_bytes(self) -> int:
        """Of the probabilities of all heads as naive attention keeps them: the softmax's own in fp32, and
        beside it, where the values are narrower, the copy that it multiplies with them."""
        item = 4 + (2 if self.precision == "bf16" else 0)
        return self.backward.case.batch_size * self.seq_len**2 * item

    @property
    def matrix_share(self) -> float | None:
        """Of what is held. None unless this is naive attention, op by op: what a compiler keeps of the
        formula, no record says."""
        held = self.held_bytes
        if self.arm != NAIVE or held is None or held < self.matrix_bytes:
            return None
        return self.matrix_bytes / held


def arms(precision: Precision, setting: Setting) -> tuple[Arm, ...]:
    """All ways, in the order of the tables; on a CPU those that `ON_CPU` names."""
    if setting.device == "cpu":
        return ON_CPU
    tf32 = (COMPILED_TF32,) if precision == "fp32" else ()
    return (NAIVE, COMPILED, *tf32, SDPA, *BACKENDS, FLEX, FLASH, FLASH_HOPPER)


def plan(setting: Setting) -> tuple[Planned, ...]:
    """What can run here, forward and backward."""
    cases = (
        each.case
        for cell in read(Readings(), setting)
        for each in (cell.forward, cell.backward)
        if obstacle(each.case, setting) is None
    )
    return tuple(planned(each, setting) for each in cases)


def read(readings: Readings, setting: Setting) -> tuple[Cell, ...]:
    """The grid, with what was measured of it, and why what cannot run was not."""
    return tuple(
        _cell(arm, precision, (head_dim, seq_len), readings, setting)
        for precision in studied(setting)
        for head_dim in HEAD_DIMS[setting.scope.name]
        for seq_len in seq_lens(setting)
        for arm in arms(precision, setting)
    )


def seq_lens(setting: Setting) -> Sequence[int]:
    """The user's, or the scope's."""
    return setting.scope.seq_lens or SEQ_LENS[setting.scope.name]


def _cell(
    arm: Arm,
    precision: Precision,
    size: tuple[int, int],
    readings: Readings,
    setting: Setting,
) -> Cell:
    head_dim, seq_len = size

    def of(pass_: OperatorPass) -> Attempt:
        found = case(
            arm,
            precision,
            pass_,
            setting,
            batch_size=setting.scope.batch_size or BATCH_SIZE,
            seq_len=seq_len,
            head_dim=head_dim,
        )
        return attempt(found, readings, setting)

    return Cell(
        arm=arm,
        precision=precision,
        head_dim=head_dim,
        seq_len=seq_len,
        forward=of("forward"),
        backward=of("backward"),
    )


def curves(cells: Sequence[Cell]) -> tuple[tuple[Cell, ...], ...]:
    """Cells that differ in their length alone, the shortest first."""
    found: dict[tuple[str, int, str], list[Cell]] = {}
    for cell in sorted(cells, key=lambda each: each.seq_len):
        found.setdefault((cell.precision, cell.head_dim, cell.arm.name), []).append(cell)
    return tuple(tuple(each) for each in found.values())


def groups(cells: Sequence[Cell]) -> tuple[tuple[Cell, ...], ...]:
    """Cells of one precision and head dim."""
    found: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell.precision, cell.head_dim), []).append(cell)
    return tuple(tuple(each) for each in found.values())


def place(cell: Cell) -> str:
    """For a title or a sentence: "fp32, head dim 64"."""
    return f"{cell.precision}, head dim {cell.head_dim}"
