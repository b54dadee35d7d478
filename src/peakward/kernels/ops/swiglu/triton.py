"""SwiGLU in one pass over memory: backward computes the sigmoid again from the projection, so that
nothing but it is kept."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from peakward.kernels.ops.recording import launch
from peakward.kernels.ops.rows.layout import RowSettings, alignment, as_rows, tiles

MOST_COLUMNS = 2048
"""The most columns of a program; a row is divided among several programs."""
APART_TILE, APART_WARPS = 1024, 4
"""Elements and warps of a program where gate and up lie apart: 8 elements a thread of each tensor."""
GELU_SCALE = tl.constexpr(1.5957691216057308)
"""2·√(2/π)."""
GELU_CUBE = tl.constexpr(0.044715)
LOG2_E = tl.constexpr(1.4426950408889634)
LOG2_E_REST = tl.constexpr(1.9259629911266175e-8)
"""The part of log₂ e that fp32 leaves out."""
LN_2 = tl.constexpr(0.6931471805599453)
FAR = tl.constexpr(128.0)
"""Beyond it exp is 0 or infinite in fp32."""


@triton.jit
def one_plus_exp(x, EXACT: tl.constexpr):  # type: ignore[no-untyped-def]
    """1 + exp(x), in fp32. A power of 2 to x·log2(e) alone errs by that product's rounding, at x = 3 by
    two units in the last place: nothing to 16 bits, too much where fp32 is what goes in and out."""
    if not EXACT:
        return 1 + tl.exp(x)
    power = x * LOG2_E
    lost = tl.fma(x, LOG2_E, -power) + x * LOG2_E_REST
    lost = tl.where(tl.abs(x) < FAR, lost, 0.0)
    return 1 + tl.exp2(power) * (1 + lost * LN_2)


@triton.jit
def divided(x, by, EXACT: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.div_rn(x, by) if EXACT else x / by


@triton.jit(do_not_specialize=["n_rows"])
def _swiglu_forward(  # type: ignore[no-untyped-def]
    x_ptr,
    y_ptr,
    n_rows,
    width,
    x_stride,
    ALIGN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    width *= ALIGN
    x_stride *= ALIGN
    n_blocks = tl.cdiv(width, COLUMNS)
    tile = tl.program_id(0)
    row = (tile // n_blocks * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = tile % n_blocks * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = (row < n_rows) & (column < width)
    at = x_ptr + row * x_stride + column
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + width, mask=inside, other=0.0).to(tl.float32)
    exact: tl.constexpr = x_ptr.dtype.element_ty == tl.float32
    y = divided(gate, one_plus_exp(-gate, exact), exact) * up
    tl.store(y_ptr + row * width + column, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["n_rows"])
def _swiglu_backward(  # type: ignore[no-untyped-def]
    g_ptr,
    x_ptr,
    out_ptr,
    n_rows,
    width,
    g_stride,
    x_stride,
    ALIGN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    width *= ALIGN
    g_stride *= ALIGN
    x_stride *= ALIGN
    n_blocks = tl.cdiv(width, COLUMNS)
    tile = tl.program_id(0)
    row = (tile // n_blocks * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = tile % n_blocks * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = (row < n_rows) & (column < width)
    at = x_ptr + row * x_stride + column
    g = tl.load(g_ptr + row * g_stride + column, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + width, mask=inside, other=0.0).to(tl.float32)
    exact: tl.constexpr = x_ptr.dtype.element_ty == tl.float32
    s = divided(1.0, one_plus_exp(-gate, exact), exact)
    out = out_ptr + row * (2 * width) + column
    to_gate = g * up * s * (1 + gate * (1 - s))
    tl.store(out, to_gate.to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(out + width, (g * gate * s).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _inside_sigmoid(x, GELU: tl.constexpr):  # type: ignore[no-untyped-def]
    """The z of an activation x·sigmoid(z): x in silu; in GELU by tanh twice what tanh is taken of, because
    (1 + tanh(u)) / 2 is sigmoid(2·u)."""
    return x * (GELU_SCALE + GELU_SCALE * GELU_CUBE * x * x) if GELU else x


@triton.jit
def _swiglu_apart_forward(  # type: ignore[no-untyped-def]
    gate_ptr, up_ptr, y_ptr, n, GELU: tl.constexpr, TILE: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = at < n
    gate = tl.load(gate_ptr + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + at, mask=inside, other=0.0).to(tl.float32)
    exact: tl.constexpr = gate_ptr.dtype.element_ty == tl.float32
    y = divided(gate, one_plus_exp(-_inside_sigmoid(gate, GELU), exact), exact) * up
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _swiglu_apart_backward(  # type: ignore[no-untyped-def]
    g_ptr,
    gate_ptr,
    up_ptr,
    to_gate_ptr,
    to_up_ptr,
    n,
    GELU: tl.constexpr,
    TILE: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = at < n
    g = tl.load(g_ptr + at, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + at, mask=inside, other=0.0).to(tl.float32)
    exact: tl.constexpr = gate_ptr.dtype.element_ty == tl.float32
    z = _inside_sigmoid(gate, GELU)
    s = divided(1.0, one_plus_exp(-z, exact), exact)
    if GELU:
        # gate·dz/dgate, some 30 at a gate of 5, where 1 - s would have lost the digits of s.
        steep = gate * (GELU_SCALE + 3 * GELU_SCALE * GELU_CUBE * gate * gate)
        slope = steep * divided(1.0, one_plus_exp(z, exact), exact)
    else:
        slope = gate * (1 - s)
    to_gate = g * up * s * (1 + slope)
    tl.store(to_gate_ptr + at, to_gate.to(to_gate_ptr.dtype.element_ty), mask=inside)
    tl.store(to_up_ptr + at, (g * gate * s).to(to_up_ptr.dtype.element_ty), mask=inside)


def settings_for(d_ff: int, itemsize: int, inputs: int = 2) -> RowSettings:
    """Forward with two inputs, backward with three; a row may be divided among several tiles."""
    return tiles(d_ff, itemsize=itemsize, inputs=inputs, most_columns=MOST_COLUMNS)


def swiglu(x: Tensor, settings: RowSettings | None = None) -> Tensor:
    """As `reference.swiglu`, in fp32 arithmetic; x in fp32, fp16 or bf16."""
    width = x.shape[-1] // 2
    y = torch.empty(*x.shape[:-1], width, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return y
    rows = as_rows(x)
    chosen = settings or settings_for(width, x.element_size())
    align = alignment(width, rows.stride(0))
    launch(
        _swiglu_forward,
        _grid(len(rows), width, chosen),
        rows,
        y,
        len(rows),
        width // align,
        rows.stride(0) // align,
        align,
        chosen.rows,
        chosen.columns,
        num_warps=chosen.warps,
    )
    return y


def swiglu_backward(gradient: Tensor, x: Tensor, settings: RowSettings | None = None) -> Tensor:
    """As `reference.swiglu_backward`, in fp32 arithmetic."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return out
    g, rows = as_rows(gradient), as_rows(x)
    width = x.shape[-1] // 2
    chosen = settings or settings_for(width, x.element_size(), inputs=3)
    strides = (g.stride(0), rows.stride(0))
    align = alignment(width, *strides)
    launch(
        _swiglu_backward,
        _grid(len(rows), width, chosen),
        g,
        rows,
        out,
        len(rows),
        width // align,
        *(each // align for each in strides),
        align,
        chosen.rows,
        chosen.columns,
        num_warps=chosen.warps,
    )
    return out


def gated_product(gate: Tensor, up: Tensor, *, gelu: bool) -> Tensor:
    """As `reference.gated_product`, in fp32 arithmetic; both of one shape and type."""
    gate, up = gate.contiguous(), up.contiguous()
    y = torch.empty_like(gate)
    _start(_swiglu_apart_forward, gelu, gate, up, y)
    return y


def gated_product_backward(
    gradient: Tensor, gate: Tensor, up: Tensor, *, gelu: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of gate and of up."""
    gradient, gate, up = gradient.contiguous(), gate.contiguous(), up.contiguous()
    to_gate, to_up = torch.empty_like(gate), torch.empty_like(up)
    _start(_swiglu_apart_backward, gelu, gradient, gate, up, to_gate, to_up)
    return to_gate, to_up


def _start(kernel: Any, gelu: bool, *tensors: Tensor) -> None:
    n = tensors[0].numel()
    if n:
        grid = (triton.cdiv(n, APART_TILE),)
        launch(kernel, grid, *tensors, n, gelu, APART_TILE, num_warps=APART_WARPS)


def _grid(n_rows: int, width: int, settings: RowSettings) -> tuple[int]:
    return (triton.cdiv(n_rows, settings.rows) * triton.cdiv(width, settings.columns),)
