"""Casts to fp8, as a matrix and transposed, in one pass over memory: 2 bytes an element of bf16 are read and
2 written."""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from peakward.kernels.ops.fp8_linear.scales import (
    FALL,
    FIRST,
    LEAST_BITS,
    NEXT,
    RUNNING,
    SHIFT,
    TICKETS,
    TO_QUARTERS,
    WINDOW,
)
from peakward.kernels.ops.recording import launch
from peakward.kernels.ops.rows.vectors import COMPILED


class TileSettings(NamedTuple):
    """The tile of a program."""

    rows: int
    columns: int
    warps: int


TILE = TileSettings(rows=128, columns=128, warps=8)
"""Both outputs are written in pieces of 128 bytes, by threads of 64 elements."""
TICKETS_, RUNNING_, NEXT_, FIRST_, WINDOW_, LEAST_BITS_, TO_QUARTERS_ = (
    tl.constexpr(each) for each in (TICKETS, RUNNING, NEXT, FIRST, WINDOW, LEAST_BITS, TO_QUARTERS)
)
INFINITY_BITS = tl.constexpr(0x7F800000)


@triton.jit
def _narrow(x, factor, LARGEST: tl.constexpr, TYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    # NaN stays NaN: a plain maximum would make the type's largest number of it.
    held = tl.clamp(x * factor, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    return held.to(TYPE)


@triton.jit
def _woven(even, odd):  # type: ignore[no-untyped-def]
    """Words of 16 bits whose low bytes are of the first."""
    even, odd = even.to(tl.uint8, bitcast=True), odd.to(tl.uint8, bitcast=True)
    if COMPILED:
        # By hand, from four bytes at a time: where single bytes of converted numbers are shifted and the
        # numbers are stored too, ptxas 12.8 takes some of them from the stack's pointer (seen on an H100).
        return tl.inline_asm_elementwise(
            "prmt.b32 $0, $2, $3, 0x5140; prmt.b32 $1, $2, $3, 0x7362;",
            "=r,=r,r,r",
            [even, odd],
            dtype=tl.uint16,
            is_pure=True,
            pack=4,
        )
    else:  # noqa: RET505 (Triton compiles one branch alone only where there are two)
        return even.to(tl.uint16) | (odd.to(tl.uint16) << 8)


@triton.jit
def tile_at(tile, n_rows, n_columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The pairs of rows and the columns of a tile, and which of its elements there are."""
    n_across = tl.cdiv(n_columns, COLUMNS)
    pair = (tile // n_across * (ROWS // 2)).to(tl.int64) + tl.arange(0, ROWS // 2)
    column = (tile % n_across * COLUMNS).to(tl.int64) + tl.arange(0, COLUMNS)
    inside = (pair < n_rows // 2)[:, None] & (column < n_columns)[None, :]
    return pair, column, inside


@triton.jit
def store_tile(  # type: ignore[no-untyped-def]
    x_even,
    x_odd,
    factor,
    rows_ptr,
    columns_ptr,
    pair,
    column,
    inside,
    n_rows,
    row_stride,
    LARGEST: tl.constexpr,
    BOTH: tl.constexpr,
):
    """Writes a tile of fp32 numbers times the factor in fp8, as it is and transposed. Returns its largest
    magnitude as the bits of fp32, whose order is that of integers and has NaN behind infinity."""
    TYPE: tl.constexpr = rows_ptr.dtype.element_ty
    even = _narrow(x_even, factor, LARGEST, TYPE)
    odd = _narrow(x_odd, factor, LARGEST, TYPE)
    at = (2 * pair)[:, None] * row_stride + column[None, :]
    tl.store(rows_ptr + at, even, mask=inside)
    tl.store(rows_ptr + at + row_stride, odd, mask=inside)
    if BOTH:
        # Two rows' bytes make one 16-bit word of the transposed matrix: words are exchanged between threads
        # by ldmatrix, where bytes went one by one (and words of four bytes crash ptxas 12.8 behind triton
        # 3.7).
        packed = _woven(even, odd)
        across = column[:, None] * (n_rows // 2) + pair[None, :]
        pairs_ptr = columns_ptr.to(tl.pointer_type(tl.uint16), bitcast=True)
        tl.store(pairs_ptr + across, tl.trans(packed), mask=tl.trans(inside))
    larger = tl.maximum(_magnitude(x_even), _magnitude(x_odd))
    return tl.max(tl.max(larger, 1), 0)


@triton.jit
def _magnitude(x):  # type: ignore[no-untyped-def]
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _cast_tile(  # type: ignore[no-untyped-def]
    tile,
    x_ptr,
    factor,
    rows_ptr,
    columns_ptr,
    n_rows,
    n_columns,
    x_stride,
    LARGEST: tl.constexpr,
    BOTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Casts one tile. Returns the bits of its largest magnitude."""
    pair, column, inside = tile_at(tile, n_rows, n_columns, ROWS, COLUMNS)
    at = (2 * pair)[:, None] * x_stride + column[None, :]
    even = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    odd = tl.load(x_ptr + at + x_stride, mask=inside, other=0.0).to(tl.float32)
    return store_tile(
        even,
        odd,
        factor,
        rows_ptr,
        columns_ptr,
        pair,
        column,
        inside,
        n_rows,
        n_columns,
        LARGEST,
        BOTH,
    )


@triton.jit
def _cast(  # type: ignore[no-untyped-def]
    x_ptr,
    scale_ptr,
    rows_ptr,
    columns_ptr,
    n_rows,
    n_columns,
    x_stride,
    LARGEST: tl.constexpr,
    BOTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    factor = tl.div_rn(1.0, tl.load(scale_ptr))
    _cast_tile(
        tl.program_id(0),
        x_ptr,
        factor,
        rows_ptr,
        columns_ptr,
        n_rows,
        n_columns,
        x_stride,
        LARGEST,
        BOTH,
        ROWS,
        COLUMNS,
    )


# Delayed scales. A scale is told by its biased exponent in fp32.


@triton.jit
def exponent_of(amax_bits, SHIFT: tl.constexpr):  # type: ignore[no-untyped-def]
    """As `reference.delayed_scale`."""
    return ((tl.maximum(amax_bits, LEAST_BITS_) + TO_QUARTERS_) >> 23) + SHIFT


@triton.jit
def scale_of(exponent):  # type: ignore[no-untyped-def]
    return (exponent << 23).to(tl.float32, bitcast=True)


@triton.jit
def factor_of(exponent):  # type: ignore[no-untyped-def]
    """The reciprocal of the scale."""
    return scale_of(254 - exponent)


@triton.jit
def remembered(history_ptr, SHIFT: tl.constexpr):  # type: ignore[no-untyped-def]
    """The exponent that the window gives."""
    window = tl.load(history_ptr + FIRST_ + tl.arange(0, WINDOW_))
    return exponent_of(tl.max(window, 0), SHIFT)


@triton.jit
def is_last(history_ptr, amax):  # type: ignore[no-untyped-def]
    """Adds a program's largest magnitude. Returns whether it is the last program to do so: it may then write
    over all that the others wrote."""
    # The ticket orders it: one fence a program is enough.
    tl.atomic_max(history_ptr + RUNNING_, amax, sem="relaxed")
    # Each thread's writes must be before the ticket, which one of them takes.
    tl.debug_barrier()
    return tl.atomic_add(history_ptr + TICKETS_, 1) == tl.num_programs(0) - 1


@triton.jit
def fallen(amax, exponent, SHIFT: tl.constexpr, FALL: tl.constexpr):  # type: ignore[no-untyped-def]
    """Whether a largest magnitude is so far below the range of a scale that its numbers lose their digits.
    Zeros have none to lose."""
    return (amax > 0) & (exponent > exponent_of(amax, SHIFT) + FALL)


@triton.jit
def misfits(amax, exponent, LARGEST: tl.constexpr, SHIFT: tl.constexpr, FALL: tl.constexpr):  # type: ignore[no-untyped-def]
    """Whether a finite largest magnitude is beyond the range of a scale, or has fallen far below it."""
    beyond = amax.to(tl.float32, bitcast=True) > scale_of(exponent) * LARGEST
    return (beyond | fallen(amax, exponent, SHIFT, FALL)) & (amax < INFINITY_BITS)


@triton.jit
def remember(history_ptr, scale_ptr, amax, exponent, SHIFT: tl.constexpr, FALL: tl.constexpr):  # type: ignore[no-untyped-def]
    """Leaves the history for the next use, and the scale for the product; NaN where the largest magnitude is
    not finite, which is not remembered. A window that it fell from keeps nothing else."""
    # In memory that nobody has written the place is any number.
    place = tl.load(history_ptr + NEXT_) & (WINDOW_ - 1)
    is_finite = amax < INFINITY_BITS
    at = tl.arange(0, WINDOW_)
    window = tl.load(history_ptr + FIRST_ + at)
    fell = fallen(amax, exponent_of(tl.max(window, 0), SHIFT), SHIFT, FALL)
    window = tl.where(at == place, amax, tl.where(fell, 0, window))
    tl.store(history_ptr + FIRST_ + at, window, mask=is_finite)
    tl.store(history_ptr + NEXT_, (place + 1) % WINDOW_, mask=is_finite)
    tl.store(history_ptr + TICKETS_, 0)
    tl.store(scale_ptr, tl.where(is_finite, scale_of(exponent), float("nan")))


@triton.jit
def _cast_delayed(  # type: ignore[no-untyped-def]
    x_ptr,
    history_ptr,
    scale_ptr,
    rows_ptr,
    columns_ptr,
    n_rows,
    n_columns,
    x_stride,
    LARGEST: tl.constexpr,
    SHIFT: tl.constexpr,
    FALL: tl.constexpr,
    BOTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    exponent = remembered(history_ptr, SHIFT)
    amax = _cast_tile(
        tl.program_id(0),
        x_ptr,
        factor_of(exponent),
        rows_ptr,
        columns_ptr,
        n_rows,
        n_columns,
        x_stride,
        LARGEST,
        BOTH,
        ROWS,
        COLUMNS,
    )
    if is_last(history_ptr, amax):
        amax = tl.atomic_xchg(history_ptr + RUNNING_, 0)
        if misfits(amax, exponent, LARGEST, SHIFT, FALL):
            exponent = exponent_of(amax, SHIFT)
            for tile in range(tl.num_programs(0)):
                _cast_tile(
                    tile,
                    x_ptr,
                    factor_of(exponent),
                    rows_ptr,
                    columns_ptr,
                    n_rows,
                    n_columns,
                    x_stride,
                    LARGEST,
                    BOTH,
                    ROWS,
                    COLUMNS,
                )
        remember(history_ptr, scale_ptr, amax, exponent, SHIFT, FALL)


def cast_rows(
    x: Tensor, scale: Tensor, dtype: torch.dtype, settings: TileSettings = TILE
) -> Tensor:
    """As `reference.cast_rows`."""
    rows = torch.empty(x.shape, dtype=dtype, device=x.device)
    _start(_cast, x, (scale,), (rows, None), settings)
    return rows


def cast_both(
    x: Tensor, scale: Tensor, dtype: torch.dtype, settings: TileSettings = TILE
) -> tuple[Tensor, Tensor]:
    """As `reference.cast_both`."""
    rows, columns = _both(x, dtype)
    _start(_cast, x, (scale,), (rows, columns), settings)
    return rows, columns


def cast_delayed_rows(
    x: Tensor, history: Tensor, dtype: torch.dtype, settings: TileSettings = TILE
) -> tuple[Tensor, Tensor]:
    """As `reference.cast_delayed`, without the transposed matrix."""
    rows = torch.empty(x.shape, dtype=dtype, device=x.device)
    scale = torch.empty((), dtype=torch.float32, device=x.device)
    _start(_cast_delayed, x, (history, scale), (rows, None), settings)
    return rows, scale


def cast_delayed_both(
    x: Tensor, history: Tensor, dtype: torch.dtype, settings: TileSettings = TILE
) -> tuple[Tensor, Tensor, Tensor]:
    """As `reference.cast_delayed`: one launch, and the history is changed on the device.

    Each program takes the scale of the window and casts its tile. The last one to end knows x's largest
    magnitude, and writes it into the window. Where that is beyond the scale's range, as at the first use,
    or far below it, this program casts all tiles again: on an empty window so do all casts of a step once,
    later only what outgrows its headroom or falls by `FALL`.
    """
    rows, columns = _both(x, dtype)
    scale = torch.empty((), dtype=torch.float32, device=x.device)
    _start(_cast_delayed, x, (history, scale), (rows, columns), settings)
    return rows, columns, scale


def _both(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    n_rows, n_columns = x.shape
    rows = torch.empty((n_rows, n_columns), dtype=dtype, device=x.device)
    return rows, torch.empty((n_columns, n_rows), dtype=dtype, device=x.device)


def _start(
    kernel: Any,
    x: Tensor,
    scaled_by: tuple[Tensor, ...],
    outputs: tuple[Tensor, Tensor | None],
    settings: TileSettings,
) -> None:
    if x.numel() == 0:
        return
    x = x if x.stride(1) == 1 else x.contiguous()
    n_rows, n_columns = x.shape
    rows, columns = outputs
    n_tiles = triton.cdiv(n_rows, settings.rows) * triton.cdiv(n_columns, settings.columns)
    constants = [torch.finfo(rows.dtype).max]
    if kernel is _cast_delayed:
        constants += (SHIFT[rows.dtype], FALL[rows.dtype])
    launch(
        kernel,
        (n_tiles,),
        x,
        *scaled_by,
        rows,
        rows if columns is None else columns,
        n_rows,
        n_columns,
        x.stride(0),
        *constants,
        columns is not None,
        settings.rows,
        settings.columns,
        num_warps=settings.warps,
    )
