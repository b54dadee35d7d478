"""How norms are laid over a GPU."""

from typing import NamedTuple

import torch
import triton

from peakward.kernels.ops.rows.layout import (
    WARP,
    RowSettings,
    ahead,
    in_two,
    multiprocessor_shared_bytes,
    multiprocessors,
    power_of_two,
    shared_bytes,
    tiles,
)

MOST_BYTES = 131072
"""The most bytes of a row, all its inputs together, that the registers of 32 warps hold."""
HELD_BYTES = 16384
"""The most bytes of a row in one input that registers hold with its weight and the sums for the
gradients of weight and bias; a wider row is spread over programs."""
MOST_BROKEN = 8192
"""Columns that registers hold of a row that begins or ends inside a vector of 16 bytes."""
PIECE_COLUMNS = 8192
PIECE_BYTES = 16384
"""The bytes of a piece in a backward pass."""
MOST_WORDS = 4 * WARP
"""The most words of a spread row, which a warp takes in at once."""
RESERVED_BYTES = 1280
"""The shared memory that each program loses to the driver and to the reductions of its warps."""
GROUPS = 8
"""The groups of programs sharing a row that a device must have room for. Programs wait for those of
their group, and by their tickets only the last group is not whole. As many launches may run at once as
leave room for a whole group beside their last ones."""


class SpreadSettings(NamedTuple):
    """Rows of which programs have some columns each."""

    columns: int
    """The most columns of a program: a power of two, with at least a vector for each of its threads."""
    warps: int
    programs: int
    """The most programs of a multiprocessor."""
    slots: int
    """Rows in shared memory: one whose sums are awaited, one that is summed up, others on their way."""

    def parts(self, width: int) -> int:
        """Programs that share a row."""
        return triton.cdiv(width, self.columns)

    def piece(self, width: int) -> int:
        """Columns of a program, in whole lines of 128 bytes."""
        return min(self.columns, triton.cdiv(triton.cdiv(width, self.parts(width)), 64) * 64)

    def resident(self, row_bytes: int, parameter_bytes: int, device: torch.device) -> int:
        """Programs that a device holds by their shared memory; 0 where none fits.

        Args:
            row_bytes: of one column of all inputs.
            parameter_bytes: of one column of weight and bias.
        """
        each = self.columns * (self.slots * row_bytes + parameter_bytes) + RESERVED_BYTES
        if each > shared_bytes(device):
            return 0
        fitting = multiprocessor_shared_bytes(device) // each
        return min(self.programs, fitting) * multiprocessors(device)


def forward_settings_for(
    width: int,
    itemsize: int,
    device: torch.device,
    *,
    inputs: int = 1,
    centred: bool = False,
    whole_vectors: bool = True,
) -> RowSettings | SpreadSettings:
    """Arguments as of `backward_settings_for`, of one row or with a residual two.

    One program a tile, whose occupancy hides what a row waits for.
    """
    if width > MOST_BROKEN and not whole_vectors:
        # Elements come one by one, and of a wide row are spilled: RMSNorm of 2,048 × 50,257 took 1.6 ms,
        # and takes 260 µs (a copy 133), LayerNorm 2.1 ms and 299.
        return RowSettings(rows=1, columns=2048, warps=8)
    most = MOST_BYTES // itemsize // inputs
    # LayerNorm is bound by what a thread does with so many elements: of 65,536 columns 191 µs for 196, of
    # 50,000 150 for 161.
    held = 3 * most // 4 if centred and (inputs, itemsize) == (1, 2) else most
    if whole_vectors and width > held:
        for spread in spread_forward_settings_for(itemsize, inputs):
            if _has_room(spread, width, inputs * itemsize, 8 if centred else 4, device):
                return spread
    if width > most:
        return RowSettings(rows=1, columns=PIECE_COLUMNS, warps=16 if centred else 32)
    two = in_two(width, itemsize=itemsize)
    if two is not None:
        # So that two programs share a multiprocessor: LayerNorm of 36,000 columns 220 µs for 231.
        beside = centred and itemsize == 2 and (two.columns, two.warps) == (32768, 16)
        return two._replace(registers=64) if beside else two
    chosen = tiles(width, itemsize=itemsize, most_columns=most)
    return _shared(chosen, width, inputs) if centred and itemsize == 2 else chosen


def _shared(chosen: RowSettings, width: int, inputs: int) -> RowSettings:
    """With so few registers, of rows of 16 bits and whole vectors, that two programs share a multiprocessor:
    while one waits for its mean or variance the other loads (H100: 8,192 × 32,768 191 µs for 197)."""
    if not 8192 < chosen.columns <= 32768:
        return chosen
    if inputs == 1 and width > 16384:
        return chosen._replace(warps=16, registers=64)
    return chosen._replace(warps=chosen.columns // 1024)


def spread_forward_settings_for(itemsize: int, inputs: int) -> tuple[SpreadSettings, ...]:
    """In the order in which they are preferred.

    By trials on an H100 (results/2026-11-23-h100-kernel-trials-norms): with a residual 65,536 columns take
    369 µs for 440 in pieces, LayerNorm 371 for 492.
    """
    programs, slots = (8, 3) if inputs == 1 else (5, 4)
    return (SpreadSettings(columns=4096 // itemsize, warps=2, programs=programs, slots=slots),)


def backward_settings_for(
    width: int,
    itemsize: int,
    device: torch.device,
    *,
    inputs: int = 2,
    whole_vectors: bool = True,
) -> RowSettings | SpreadSettings:
    """
    Args:
        itemsize: bytes an element of the widest input.
        inputs: how many rows are loaded for one, 2 or with a residual's gradient 3.
        whole_vectors: whether rows begin and end with vectors of 16 bytes.
    """
    if width * itemsize <= HELD_BYTES:
        return _held(width, itemsize, inputs, device)
    if whole_vectors:
        for spread in spread_backward_settings_for(itemsize, inputs):
            if _has_room(spread, width, inputs * itemsize, 4, device):
                return spread
    columns = PIECE_BYTES // itemsize
    return RowSettings(1, columns, warps=8, programs=multiprocessors(device), stages=3)


def _held(width: int, itemsize: int, inputs: int, device: torch.device) -> RowSettings:
    columns, programs = power_of_two(width), multiprocessors(device)
    if itemsize == 4 and columns > HELD_BYTES // itemsize // 2:
        # Neither registers nor shared memory hold a second row of fp32 beside the sums.
        return RowSettings(rows=1, columns=columns, warps=8, programs=programs)
    return ahead(width, itemsize=itemsize, inputs=inputs, multiprocessors=programs)


def spread_backward_settings_for(itemsize: int, inputs: int) -> tuple[SpreadSettings, ...]:
    """In the order in which they are preferred: the second of three inputs for GPUs with 99 KiB of shared
    memory a program.

    By trials on an H100 (results/2026-11-23-h100-kernel-trials-norms): of 4,096 × 32,768 281.9 µs for 284.7
    of programs twice as large, but with a residual's gradient 400 for 369.5.
    """
    small = SpreadSettings(columns=4096 // itemsize, warps=2, programs=6, slots=4)
    if inputs == 2:
        return (small,)
    return (SpreadSettings(columns=8192 // itemsize, warps=4, programs=2, slots=4), small)


def _has_room(
    spread: SpreadSettings,
    width: int,
    row_bytes: int,
    parameter_bytes: int,
    device: torch.device,
) -> bool:
    """For `GROUPS` groups of programs at once, weights being of fp32 at most."""
    n_parts = spread.parts(width)
    if device.type != "cuda" or n_parts * spread.warps > MOST_WORDS:
        return False
    return spread.resident(row_bytes, parameter_bytes, device) >= GROUPS * n_parts
