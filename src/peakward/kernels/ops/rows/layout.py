"""How rows are laid over a GPU: what every kernel that works row by row shares.

Such a kernel is bound by memory as long as enough bytes are in flight (Little 1961): an H100 needs
3 TB/s × 600 ns = 1.8 MB, 14 KB for each of its 132 multiprocessors, at all times, also while a
program reduces or stores. So a thread has some 64 bytes of loads in flight, rows that are short
share a program, and long ones have up to 32 warps.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

WARP = 32
ACCESS_BYTES = 16
"""The most that a thread loads at once."""
IN_FLIGHT_BYTES = 64
"""The bytes of a thread's loads in flight, all inputs together."""
MOST_WARPS = 32
SHARING_COLUMNS = 16384
"""The most columns of a row whose program leaves registers for a second program, also with 64 elements
a thread."""
LEAST_WARPS = 4
TWO_TILES_FROM = 2048
"""Columns of the first."""
AHEAD_WARPS = 4
"""The warps of a multiprocessor where programs go through many tiles."""
AHEAD_BYTES = 46 << 10
"""The least bytes of a multiprocessor's loads in flight while its programs work: with 40 KB norms'
gradients took 3% longer (H100), with 64 2%."""
AHEAD_SHARED_BYTES = 96 << 10
"""The shared memory for loads ahead. An A100 has 163 KiB for all programs of a multiprocessor."""
MOST_INT32 = 2**31 - 1


class RowSettings(NamedTuple):
    """The sizes with which a kernel over rows is compiled and started."""

    rows: int
    """The rows of a tile, a power of two."""
    columns: int
    """The columns of a tile, a power of two."""
    warps: int
    programs: int | None = None
    """The number of programs that share the tiles; None for one program a tile."""
    stages: int = 1
    """Tiles of a program in flight at once; more than one through shared memory."""
    registers: int | None = None
    """The most registers of a thread; None lets the compiler choose."""
    more: int = 0
    """Columns of a second tile behind the first, a power of two that divides these; 0 for none."""

    @property
    def held(self) -> int:
        """Columns of a row at once: with fewer than the width it goes by in pieces, and is read again from
        the L2."""
        return self.columns + self.more

    def grid(self, n_rows: int) -> tuple[int]:
        """Programs for so many rows, at least 1."""
        n_tiles = -(-n_rows // self.rows)
        return (n_tiles if self.programs is None else max(1, min(n_tiles, self.programs)),)


def tiles(width: int, *, itemsize: int, inputs: int = 1, most_columns: int) -> RowSettings:
    """Tiles of whole rows, or where those are beyond `most_columns` of pieces of one row.

    Args:
        itemsize: bytes an element of the widest input.
        inputs: how many are loaded of the tile's shape.
        most_columns: a power of two.
    """
    columns = min(power_of_two(width), most_columns)
    each = max(ACCESS_BYTES, IN_FLIGHT_BYTES // power_of_two(inputs)) // itemsize
    warps = columns // (each * WARP)
    if columns <= SHARING_COLUMNS and 2 * width < math.sqrt(2) * columns:
        # Of a tile much of which is not there: LayerNorm of 5,000 columns, which has two tiles now, took
        # 226 µs by four warps for 244.
        warps //= 2
    warps = min(max(warps, LEAST_WARPS), MOST_WARPS)
    rows = max(1, warps * WARP * each // columns) if columns >= width else 1
    return RowSettings(rows=rows, columns=columns, warps=warps)


def in_two(width: int, *, itemsize: int, inputs: int = 1) -> RowSettings | None:
    """The settings of a row whose width is at most one and a half times a power of two: a tile of that
    power and one of the rest. None for other rows, and for narrow ones, which share tiles.

    A thread has 32 elements of 16 bits of the first tile. Where the rest is small it has twice as many,
    so that two programs share a multiprocessor: 36,000 columns took 199 µs for 238, 18,000 196 for 198
    (softmax).
    """
    columns = power_of_two(width) // 2
    rest = width - columns
    if columns < TWO_TILES_FROM or rest > columns // 2:
        return None
    each = (2 if rest <= columns // 8 else 1) * IN_FLIGHT_BYTES // power_of_two(inputs)
    warps = min(max(columns * itemsize // (each * WARP), LEAST_WARPS), MOST_WARPS)
    more = max(power_of_two(rest), warps * WARP * ACCESS_BYTES // itemsize)
    return RowSettings(rows=1, columns=columns, warps=warps, more=more)


def ahead(width: int, *, itemsize: int, inputs: int, multiprocessors: int) -> RowSettings:
    """Tiles of whole rows for programs that go through many, as many of them loaded ahead as make
    `AHEAD_BYTES`.

    A thread has 32 elements, and warps lie side by side along a row: sums over the rows of a tile are
    then a thread's own. A multiprocessor has four warps, in as many programs as they make: more
    programs leave more partial sums behind.
    """
    columns = power_of_two(width)
    warps = max(1, min(LEAST_WARPS, columns // 256), columns // 1024)
    rows = max(1, 1024 * warps // columns)
    programs = max(1, AHEAD_WARPS // warps)
    row_bytes = programs * rows * inputs * itemsize
    n_ahead = max(2, -(-AHEAD_BYTES // (row_bytes * width)))
    fitting = AHEAD_SHARED_BYTES // (row_bytes * columns)
    return RowSettings(
        rows=rows,
        columns=columns,
        warps=warps,
        programs=multiprocessors * programs,
        stages=1 + max(1, min(n_ahead, fitting)),
    )


def power_of_two(n: int) -> int:
    """The least one that is not below n."""
    return 1 << max(0, n - 1).bit_length()


def alignment(*extents: int) -> int:
    """The largest power of two up to 16 that divides all.

    Kernels are handed widths and strides in units of it and multiply, so that the compiler knows
    what they are multiples of: by itself it sees only those of 16, and 1000 columns of bf16 would
    be loaded one by one. Of a stride that has 64 bits the unit is 1: divided it could have 32, in
    which its product would be taken.
    """
    return 1 if max(extents) > MOST_INT32 else math.gcd(16, *extents)


def vector(itemsize: int, width: int, *strides: int) -> int:
    """Elements of 16 bytes, where rows begin or end inside of such a vector, in all tensors alike; else
    1, for rows without edges (`vectors`).

    Args:
        strides: of the rows of every tensor.
    """
    n = ACCESS_BYTES // itemsize
    begins = {each % n for each in strides}
    return n if len(begins) == 1 and (begins != {0} or width % n) else 1


def of_whole_vectors(align: int, *tensors: Tensor) -> bool:
    """Whether all rows begin and end with vectors of 16 bytes, or of narrower elements with as many of these.

    Args:
        align: of the width and all strides.
    """
    n = ACCESS_BYTES // max(each.element_size() for each in tensors)
    return align % n == 0 and all(each.data_ptr() % ACCESS_BYTES == 0 for each in tensors)


def as_rows(x: Tensor) -> Tensor:
    """x (…, width) as (rows, width) with columns next to each other: a copy only where x's strides
    allow no such view."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()


def multiprocessors(device: torch.device) -> int:
    """The multiprocessors of a GPU; 4 where kernels are interpreted or only compiled."""
    if device.type != "cuda":
        return 4
    return torch.cuda.get_device_properties(device).multi_processor_count


def shared_bytes(device: torch.device) -> int:
    """The shared memory that a program may have; that of an A100 where kernels are interpreted or only
    compiled."""
    if device.type != "cuda":
        return 163 << 10
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", 48 << 10))


def multiprocessor_shared_bytes(device: torch.device) -> int:
    """The shared memory that all programs of a multiprocessor may have together."""
    if device.type != "cuda":
        return 164 << 10
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_multiprocessor", 64 << 10))
