"""Casts to fp8, as a matrix and transposed, in one pass over memory: 2 bytes an element of bf16 are read and
2 written."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from peakward.kernels.ops.recording import launch
from peakward.kernels.ops.rows.vectors import COMPILED


class TileSettings(NamedTuple):
    """The tile of a program."""

    rows: int
    columns: int
    warps: int


TILE = TileSettings(rows=128, columns=128, warps=8)
"""Both outputs are written in pieces of 128 bytes, by threads of 64 elements."""


@triton.jit
def _narrow(x_ptr, at, inside, factor, LARGEST: tl.constexpr, TYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    scaled = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32) * factor
    # NaN stays NaN: a plain maximum would make the type's largest number of it.
    held = tl.clamp(scaled, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
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
    TYPE: tl.constexpr = rows_ptr.dtype.element_ty
    factor = tl.div_rn(1.0, tl.load(scale_ptr))
    # Two rows' bytes make one 16-bit word of the transposed matrix: words are exchanged between threads by
    # ldmatrix, where bytes went one by one (and words of four bytes crash ptxas 12.8 behind triton 3.7).
    n_across = tl.cdiv(n_columns, COLUMNS)
    tile = tl.program_id(0)
    pairs = ROWS // 2
    pair = (tile // n_across * pairs).to(tl.int64) + tl.arange(0, ROWS // 2)
    column = (tile % n_across * COLUMNS).to(tl.int64) + tl.arange(0, COLUMNS)
    inside = (pair < n_rows // 2)[:, None] & (column < n_columns)[None, :]
    at = (2 * pair)[:, None] * x_stride + column[None, :]
    even = _narrow(x_ptr, at, inside, factor, LARGEST, TYPE)
    odd = _narrow(x_ptr, at + x_stride, inside, factor, LARGEST, TYPE)
    at = (2 * pair)[:, None] * n_columns + column[None, :]
    tl.store(rows_ptr + at, even, mask=inside)
    tl.store(rows_ptr + at + n_columns, odd, mask=inside)
    if BOTH:
        packed = _woven(even, odd)
        across = column[:, None] * (n_rows // 2) + pair[None, :]
        pairs_ptr = columns_ptr.to(tl.pointer_type(tl.uint16), bitcast=True)
        tl.store(pairs_ptr + across, tl.trans(packed), mask=tl.trans(inside))


def cast_rows(
    x: Tensor, scale: Tensor, dtype: torch.dtype, settings: TileSettings = TILE
) -> Tensor:
    """As `reference.cast_rows`."""
    rows = torch.empty(x.shape, dtype=dtype, device=x.device)
    _start(x, scale, rows, None, settings)
    return rows


def cast_both(
    x: Tensor, scale: Tensor, dtype: torch.dtype, settings: TileSettings = TILE
) -> tuple[Tensor, Tensor]:
    """As `reference.cast_both`."""
    n_rows, n_columns = x.shape
    rows = torch.empty((n_rows, n_columns), dtype=dtype, device=x.device)
    columns = torch.empty((n_columns, n_rows), dtype=dtype, device=x.device)
    _start(x, scale, rows, columns, settings)
    return rows, columns


def _start(
    x: Tensor,
    scale: Tensor,
    rows: Tensor,
    columns: Tensor | None,
    settings: TileSettings,
) -> None:
    if x.numel() == 0:
        return
    x = x if x.stride(1) == 1 else x.contiguous()
    n_rows, n_columns = x.shape
    n_tiles = triton.cdiv(n_rows, settings.rows) * triton.cdiv(n_columns, settings.columns)
    launch(
        _cast,
        (n_tiles,),
        x,
        scale,
        rows,
        rows if columns is None else columns,
        n_rows,
        n_columns,
        x.stride(0),
        torch.finfo(rows.dtype).max,
        columns is not None,
        settings.rows,
        settings.columns,
        num_warps=settings.warps,
    )
