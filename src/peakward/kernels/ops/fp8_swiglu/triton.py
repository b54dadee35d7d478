"""SwiGLU that writes fp8 as it is and transposed: forward 4 bytes are read for each result and 2 written,
backward 6 and 4."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from peakward.kernels.ops.fp8_linear.scales import FALL, SHIFT
from peakward.kernels.ops.fp8_linear.triton import (
    RUNNING_,
    TileSettings,
    exponent_of,
    factor_of,
    is_last,
    misfits,
    remember,
    remembered,
    store_tile,
    tile_at,
)
from peakward.kernels.ops.recording import launch
from peakward.kernels.ops.swiglu.triton import divided, one_plus_exp

TILE = TileSettings(rows=128, columns=64, warps=8)
"""Threads of 32 elements of each input; the transposed matrix is written in pieces of 128 bytes."""


@triton.jit
def _product(packed_ptr, at, inside, width):  # type: ignore[no-untyped-def]
    exact: tl.constexpr = packed_ptr.dtype.element_ty == tl.float32
    gate = tl.load(packed_ptr + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(packed_ptr + at + width, mask=inside, other=0.0).to(tl.float32)
    return divided(gate, one_plus_exp(-gate, exact), exact) * up


@triton.jit
def _forward_tile(  # type: ignore[no-untyped-def]
    tile,
    packed_ptr,
    factor,
    rows_ptr,
    columns_ptr,
    n_rows,
    width,
    LARGEST: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    pair, column, inside = tile_at(tile, n_rows, width, ROWS, COLUMNS)
    at = (4 * pair)[:, None] * width + column[None, :]
    even = _product(packed_ptr, at, inside, width)
    odd = _product(packed_ptr, at + 2 * width, inside, width)
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
        width,
        LARGEST,
        True,
    )


@triton.jit
def _fp8_swiglu_forward(  # type: ignore[no-untyped-def]
    packed_ptr,
    history_ptr,
    scale_ptr,
    rows_ptr,
    columns_ptr,
    n_rows,
    width,
    LARGEST: tl.constexpr,
    SHIFT_: tl.constexpr,
    FALL_: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    exponent = remembered(history_ptr, SHIFT_)
    amax = _forward_tile(
        tl.program_id(0),
        packed_ptr,
        factor_of(exponent),
        rows_ptr,
        columns_ptr,
        n_rows,
        width,
        LARGEST,
        ROWS,
        COLUMNS,
    )
    if is_last(history_ptr, amax):
        amax = tl.atomic_xchg(history_ptr + RUNNING_, 0)
        if misfits(amax, exponent, LARGEST, SHIFT_, FALL_):
            exponent = exponent_of(amax, SHIFT_)
            for tile in range(tl.num_programs(0)):
                _forward_tile(
                    tile,
                    packed_ptr,
                    factor_of(exponent),
                    rows_ptr,
                    columns_ptr,
                    n_rows,
                    width,
                    LARGEST,
                    ROWS,
                    COLUMNS,
                )
        remember(history_ptr, scale_ptr, amax, exponent, SHIFT_, FALL_)


@triton.jit
def _gradients(g_ptr, g_at, packed_ptr, at, inside, width):  # type: ignore[no-untyped-def]
    """Those of gate and of up."""
    exact: tl.constexpr = packed_ptr.dtype.element_ty == tl.float32
    g = tl.load(g_ptr + g_at, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(packed_ptr + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(packed_ptr + at + width, mask=inside, other=0.0).to(tl.float32)
    s = divided(1.0, one_plus_exp(-gate, exact), exact)
    return g * up * s * (1 + gate * (1 - s)), g * gate * s


@triton.jit
def _backward_tile(  # type: ignore[no-untyped-def]
    tile,
    g_ptr,
    packed_ptr,
    factor,
    rows_ptr,
    columns_ptr,
    n_rows,
    width,
    LARGEST: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    pair, column, inside = tile_at(tile, n_rows, width, ROWS, COLUMNS)
    g_at = (2 * pair)[:, None] * width + column[None, :]
    at = (4 * pair)[:, None] * width + column[None, :]
    gate_even, up_even = _gradients(g_ptr, g_at, packed_ptr, at, inside, width)
    gate_odd, up_odd = _gradients(g_ptr, g_at + width, packed_ptr, at + 2 * width, inside, width)
    of_gate = store_tile(
        gate_even,
        gate_odd,
        factor,
        rows_ptr,
        columns_ptr,
        pair,
        column,
        inside,
        n_rows,
        2 * width,
        LARGEST,
        True,
    )
    of_up = store_tile(
        up_even,
        up_odd,
        factor,
        rows_ptr + width,
        columns_ptr + tl.cast(width, tl.int64) * n_rows,
        pair,
        column,
        inside,
        n_rows,
        2 * width,
        LARGEST,
        True,
    )
    return tl.maximum(of_gate, of_up)


@triton.jit
def _fp8_swiglu_backward(  # type: ignore[no-untyped-def]
    g_ptr,
    packed_ptr,
    history_ptr,
    scale_ptr,
    rows_ptr,
    columns_ptr,
    n_rows,
    width,
    LARGEST: tl.constexpr,
    SHIFT_: tl.constexpr,
    FALL_: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    exponent = remembered(history_ptr, SHIFT_)
    amax = _backward_tile(
        tl.program_id(0),
        g_ptr,
        packed_ptr,
        factor_of(exponent),
        rows_ptr,
        columns_ptr,
        n_rows,
        width,
        LARGEST,
        ROWS,
        COLUMNS,
    )
    if is_last(history_ptr, amax):
        amax = tl.atomic_xchg(history_ptr + RUNNING_, 0)
        if misfits(amax, exponent, LARGEST, SHIFT_, FALL_):
            exponent = exponent_of(amax, SHIFT_)
            for tile in range(tl.num_programs(0)):
                _backward_tile(
                    tile,
                    g_ptr,
                    packed_ptr,
                    factor_of(exponent),
                    rows_ptr,
                    columns_ptr,
                    n_rows,
                    width,
                    LARGEST,
                    ROWS,
                    COLUMNS,
                )
        remember(history_ptr, scale_ptr, amax, exponent, SHIFT_, FALL_)


def forward(
    packed: Tensor, history: Tensor, settings: TileSettings = TILE
) -> tuple[Tensor, Tensor, Tensor]:
    """As `reference.forward`: one launch, as `fp8_linear.triton.cast_delayed_both`."""
    packed = packed.contiguous()
    n_rows, width = packed.shape[0], packed.shape[1] // 2
    made = _made(packed, n_rows, width, torch.float8_e4m3fn)
    _start(_fp8_swiglu_forward, (packed,), history, made, width, settings)
    return made


def backward(
    gradient: Tensor, packed: Tensor, history: Tensor, settings: TileSettings = TILE
) -> tuple[Tensor, Tensor, Tensor]:
    """As `reference.backward`, likewise."""
    gradient, packed = gradient.contiguous(), packed.contiguous()
    made = _made(packed, packed.shape[0], packed.shape[1], torch.float8_e5m2)
    _start(_fp8_swiglu_backward, (gradient, packed), history, made, gradient.shape[1], settings)
    return made


def _made(
    like: Tensor, n_rows: int, n_columns: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    rows = torch.empty((n_rows, n_columns), dtype=dtype, device=like.device)
    columns = torch.empty((n_columns, n_rows), dtype=dtype, device=like.device)
    return rows, columns, torch.empty((), dtype=torch.float32, device=like.device)


def _start(
    kernel: Any,
    inputs: tuple[Tensor, ...],
    history: Tensor,
    made: tuple[Tensor, Tensor, Tensor],
    width: int,
    settings: TileSettings,
) -> None:
    rows, columns, scale = made
    n_rows = len(rows)
    launch(
        kernel,
        (triton.cdiv(n_rows, settings.rows) * triton.cdiv(width, settings.columns),),
        *inputs,
        history,
        scale,
        rows,
        columns,
        n_rows,
        width,
        torch.finfo(rows.dtype).max,
        SHIFT[rows.dtype],
        FALL[rows.dtype],
        settings.rows,
        settings.columns,
        num_warps=settings.warps,
    )
