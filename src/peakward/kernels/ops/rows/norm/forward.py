"""Rows normalised, in one pass over memory where a row fits: RMSNorm, and with a mean LayerNorm.

Rows stay in registers between their mean, their variance about it and the result. Wider ones are spread
over programs, or read again from the L2: of LayerNorm first for mean and variance together, kept a lane
apart (Chan et al. 1983, equations 2.1), then for the result. A residual's addition goes with it.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from peakward.kernels.ops.recording import launch
from peakward.kernels.ops.rows.candidates import one_row_or_more, spread
from peakward.kernels.ops.rows.held import added, columns_of
from peakward.kernels.ops.rows.layout import (
    RowSettings,
    alignment,
    as_rows,
    of_whole_vectors,
    power_of_two,
)
from peakward.kernels.ops.rows.norm.settings import SpreadSettings, forward_settings_for
from peakward.kernels.ops.rows.norm.spread_forward import spread_forward
from peakward.kernels.ops.rows.vectors import packed
from peakward.kernels.ops.tuning import tuned


@triton.jit(do_not_specialize=["n_rows"])
def _row_norm_fwd(  # type: ignore[no-untyped-def]
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    s_ptr,
    mean_ptr,
    r_ptr,
    width,
    x_stride,
    residual_stride,
    eps,
    ALIGN: tl.constexpr,
    n_rows,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    MORE: tl.constexpr,
):
    width *= ALIGN
    x_stride *= ALIGN
    residual_stride *= ALIGN
    TILES: tl.constexpr = 2 if MORE else 1
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    ss = ()
    for tile in tl.static_range(TILES):
        column = columns_of(tile, COLUMNS, MORE)[None, :]
        inside = (row < n_rows) & (column < width)
        s = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0)
        if residual_ptr is not None:
            at = residual_ptr + row * residual_stride + column
            residual = tl.load(at, mask=inside, other=0.0).to(tl.float32)
            s = (s.to(tl.float32) + residual).to(s_ptr.dtype.element_ty)
            tl.store(s_ptr + row * width + column, s, mask=inside)
        ss += (s,)  # type: ignore[assignment]
    mean = 0.0
    if mean_ptr is not None:
        xs = ()
        for tile in tl.static_range(TILES):
            xs += (ss[tile].to(tl.float32),)  # type: ignore[assignment]
        mean = tl.sum(added(xs), 1, keep_dims=True) / width
        tl.store(mean_ptr + row, mean, mask=row < n_rows)
    squares = ()
    for tile in tl.static_range(TILES):
        if mean_ptr is not None:
            column = columns_of(tile, COLUMNS, MORE)[None, :]
            x = tl.where(column < width, packed(ss[tile]).to(tl.float32) - mean, 0.0)
        else:
            x = ss[tile].to(tl.float32)
        squares += (x * x,)  # type: ignore[assignment]
    r = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(added(squares), 1, keep_dims=True) / width + eps))
    tl.store(r_ptr + row, r, mask=row < n_rows)
    for tile in tl.static_range(TILES):
        column = columns_of(tile, COLUMNS, MORE)[None, :]
        y = (packed(ss[tile]).to(tl.float32) - mean) * r
        # Only now, from the L1: held since before the row, they cost a third of the occupancy.
        if weight_ptr is not None:
            y *= tl.load(weight_ptr + column, mask=column < width).to(tl.float32)
        if bias_ptr is not None:
            y += tl.load(bias_ptr + column, mask=column < width).to(tl.float32)
        inside = (row < n_rows) & (column < width)
        tl.store(y_ptr + row * width + column, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _row_norm_fwd_in_pieces(  # type: ignore[no-untyped-def]
    x_ptr,
    residual_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    s_ptr,
    mean_ptr,
    r_ptr,
    width,
    x_stride,
    residual_stride,
    eps,
    ALIGN: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    width *= ALIGN
    x_stride *= ALIGN
    residual_stride *= ALIGN
    column = tl.arange(0, COLUMNS)
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * x_stride
    out_row = row * width
    squares = tl.zeros((COLUMNS,), tl.float32)
    # Of each lane: how many, their mean, and in `squares` their squared distances from it.
    count = tl.zeros((COLUMNS,), tl.float32)
    lane_mean = tl.zeros((COLUMNS,), tl.float32)
    for start in tl.range(0, width, COLUMNS):
        at = start + column
        inside = at < width
        x = tl.load(x_row + at, mask=inside, other=0.0, eviction_policy="evict_last")
        x = x.to(tl.float32)
        if residual_ptr is not None:
            residual_row = residual_ptr + row * residual_stride
            s = (x + tl.load(residual_row + at, mask=inside, other=0.0).to(tl.float32)).to(
                s_ptr.dtype.element_ty
            )
            tl.store(s_ptr + out_row + at, s, mask=inside)
            x = s.to(tl.float32)
        if mean_ptr is not None:
            count += tl.where(inside, 1.0, 0.0)
            distance = tl.where(inside, x - lane_mean, 0.0)
            lane_mean += distance / tl.maximum(count, 1.0)
            squares += tl.where(inside, distance * (x - lane_mean), 0.0)
        else:
            squares += x * x
    if mean_ptr is not None:
        mean = tl.sum(count * lane_mean, 0) / width
        # What the first sum's rounding lost.
        mean += tl.sum(count * (lane_mean - mean), 0) / width
        squares += count * (lane_mean - mean) * (lane_mean - mean)
    r = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(squares, 0) / width + eps))
    if mean_ptr is not None:
        tl.store(mean_ptr + row, mean)
    tl.store(r_ptr + row, r)
    for start in tl.range(0, width, COLUMNS):
        at = start + column
        inside = at < width
        if residual_ptr is not None:
            x = tl.load(s_ptr + out_row + at, mask=inside)
        else:
            x = tl.load(x_row + at, mask=inside, eviction_policy="evict_first")
        y = x.to(tl.float32)
        if mean_ptr is not None:
            y -= mean
        y *= r
        if weight_ptr is not None:
            y *= tl.load(weight_ptr + at, mask=inside).to(tl.float32)
        if bias_ptr is not None:
            y += tl.load(bias_ptr + at, mask=inside).to(tl.float32)
        tl.store(y_ptr + out_row + at, y.to(y_ptr.dtype.element_ty), mask=inside)


class _Call(NamedTuple):
    """The arguments of `normalise`, of (rows, width)."""

    x: Tensor
    residual: Tensor | None
    weight: Tensor | None
    bias: Tensor | None
    eps: float
    centred: bool

    @property
    def align(self) -> int:
        added = self.x if self.residual is None else self.residual
        return alignment(self.x.shape[1], self.x.stride(0), added.stride(0))

    @property
    def inputs(self) -> int:
        return 1 + (self.residual is not None)


def normalise(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    settings: RowSettings | SpreadSettings | None = None,
    *,
    centred: bool,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """y; x + residual, where there is a residual; the mean, where it is taken away (else r again); and r,
    1 / √(mean square + eps); the last two (rows,) of fp32. In fp32 arithmetic.

    Args:
        x: (…, width) in fp32, fp16 or bf16, not empty.
        residual: of x's shape and type.
        weight, bias: (width,), contiguous.
        settings: for the width and the device unless told.
        centred: whether the mean is taken away first.
    """
    rows = [as_rows(each) for each in (x, residual) if each is not None]
    call = _Call(rows[0], rows[1] if residual is not None else None, weight, bias, eps, centred)
    y, s, mean, r = _started(call, settings or _settings_of(call))
    shape = x.shape
    return y.view(shape), None if s is None else s.view(shape), r if mean is None else mean, r


def _started(
    call: _Call, settings: RowSettings | SpreadSettings
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor]:
    """y, s, mean and r."""
    x, residual = call.x, call.residual
    n_rows, width = x.shape
    y = torch.empty((n_rows, width), dtype=x.dtype, device=x.device)
    s = None if residual is None else torch.empty_like(y)
    r = torch.empty(n_rows, dtype=torch.float32, device=x.device)
    mean = torch.empty_like(r) if call.centred else None
    strides = (x.stride(0), x.stride(0) if residual is None else residual.stride(0))
    align = call.align
    tensors = (x, residual, call.weight, call.bias, y, s, mean, r)
    extents = (width // align, *(each // align for each in strides), call.eps, align)
    if isinstance(settings, SpreadSettings):
        spread_forward(tensors, extents, x, settings)
    elif settings.held >= width:
        launch(
            _row_norm_fwd,
            (triton.cdiv(n_rows, settings.rows),),
            *tensors,
            *extents,
            n_rows,
            settings.rows,
            settings.columns,
            settings.more,
            num_warps=settings.warps,
            maxnreg=settings.registers,
        )
    else:
        launch(
            _row_norm_fwd_in_pieces,
            (n_rows,),
            *tensors,
            *extents,
            settings.columns,
            num_warps=settings.warps,
        )
    return y, s, mean, r


def _settings_of(call: _Call) -> RowSettings | SpreadSettings:
    """By rule, or where asked for the fastest."""
    x, width = call.x, call.x.shape[1]
    whole_vectors = of_whole_vectors(
        call.align, x, *(() if call.residual is None else (call.residual,))
    )
    rule = forward_settings_for(
        width,
        x.element_size(),
        x.device,
        inputs=call.inputs,
        centred=call.centred,
        whole_vectors=whole_vectors,
    )
    if isinstance(rule, RowSettings) and rule.held < width:
        return rule
    return tuned(
        "norm forward",
        lambda: (
            f"{x.dtype}, {width} columns, up to {power_of_two(len(x))} rows, {call.inputs} of each, "
            f"{'whole' if whole_vectors else 'broken'} vectors, {'' if call.centred else 'not '}centred"
        ),
        x.device,
        rule=rule,
        others=lambda: (
            spread(x.element_size())
            if isinstance(rule, SpreadSettings)
            else one_row_or_more(width, x.element_size())
        ),
        start=lambda each: _started(call, each),
    )
