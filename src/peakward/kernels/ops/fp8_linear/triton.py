"""Casts to fp8, as a matrix and transposed, in one pass over memory: 2 bytes an element of bf16 are read and
2 written."""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from peakward.kernels.ops.fp8_linear.scales import (
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
    """Casts one tile. Returns its largest magnitude as the bits of fp32, whose order is that of integers and
    has NaN behind infinity."""
    TYPE: tl.constexpr = rows_ptr.dtype.element_ty
    # Two rows' bytes make one 16-bit word of the transposed matrix: words are exchanged between threads by
    # ldmatrix, where bytes went one by one (and words of four bytes crash ptxas 12.8 behind triton 3.7).
    n_across = tl.cdiv(n_columns, COLUMNS)
    pairs = ROWS // 2
    pair = (tile // n_across * pairs).to(tl.int64) + tl.arange(0, ROWS // 2)
    column = (tile % n_across * COLUMNS).to(tl.int64) + tl.arange(0, COLUMNS)
    inside = (pair < n_rows // 2)[:, None] & (column < n_columns)[None, :]
    at = (2 * pair)[:, None] * x_stride + column[None, :]
    x_even = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    x_odd = tl.load(x_ptr + at + x_stride, mask=inside, other=0.0).to(tl.float32)
    even = _narrow(x_even, factor, LARGEST, TYPE)
    odd = _narrow(x_odd, factor, LARGEST, TYPE)
    at = (2 * pair)[:, None] * n_columns + column[None, :]
    tl.store(rows_ptr + at, even, mask=inside)
    tl.store(rows_ptr + at + n_columns, odd, mask=inside)
    if BOTH:
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


@triton.jit
def _exponent_of_scale(amax_bits, SHIFT: tl.constexpr):  # type: ignore[no-untyped-def]
    """As `reference.delayed_scale`, but for the bias of fp32: the scale's biased exponent."""
    return ((tl.maximum(amax_bits, LEAST_BITS_) + TO_QUARTERS_) >> 23) + SHIFT


@triton.jit
def _power_of_two(biased):  # type: ignore[no-untyped-def]
    return (biased << 23).to(tl.float32, bitcast=True)


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
    BOTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    window = history_ptr + FIRST_ + tl.arange(0, WINDOW_)
    exponent = _exponent_of_scale(tl.max(tl.load(window), 0), SHIFT)
    amax = _cast_tile(
        tl.program_id(0),
        x_ptr,
        _power_of_two(254 - exponent),
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
    tl.atomic_max(history_ptr + RUNNING_, amax)
    # The last program may write over all that the others wrote: each of its threads' writes must be before
    # the ticket, which one of them takes.
    tl.debug_barrier()
    n_tiles = tl.num_programs(0)
    if tl.atomic_add(history_ptr + TICKETS_, 1) == n_tiles - 1:
        amax = tl.atomic_xchg(history_ptr + RUNNING_, 0)
        scale = _power_of_two(exponent)
        if amax < INFINITY_BITS:
            if amax.to(tl.float32, bitcast=True) > scale * LARGEST:
                exponent = _exponent_of_scale(amax, SHIFT)
                scale = _power_of_two(exponent)
                for tile in range(n_tiles):
                    _cast_tile(
                        tile,
                        x_ptr,
                        _power_of_two(254 - exponent),
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
            place = tl.load(history_ptr + NEXT_)
            tl.store(history_ptr + FIRST_ + place, amax)
            tl.store(history_ptr + NEXT_, (place + 1) % WINDOW_)
        else:
            scale = float("nan")
        tl.store(scale_ptr, scale)
        tl.store(history_ptr + TICKETS_, 0)


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
    scale = torch.empty((), device=x.device)
    _start(_cast_delayed, x, (history, scale), (rows, None), settings)
    return rows, scale


def cast_delayed_both(
    x: Tensor, history: Tensor, dtype: torch.dtype, settings: TileSettings = TILE
) -> tuple[Tensor, Tensor, Tensor]:
    """As `reference.cast_delayed`: one launch, and the history is changed on the device.

    Each program takes the scale of the window and casts its tile. The last one to end knows x's largest
    magnitude, and writes it into the window. Where that is beyond the scale's range, as at the first use,
    this program casts all tiles again: on an empty window so do all casts of a step once, later only what
    outgrows its headroom.
    """
    rows, columns = _both(x, dtype)
    scale = torch.empty((), device=x.device)
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
        constants.append(SHIFT[rows.dtype])
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
