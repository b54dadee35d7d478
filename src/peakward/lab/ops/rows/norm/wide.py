"""Gradients of normalised rows that fill the registers, with the sums for weight and bias beside them.

A row is as many pieces, of a vector a thread, as it takes, so that no registers are kept for columns that it
has not; and a piece is reduced within its threads before the next is unpacked.
"""

import triton
import triton.language as tl

from peakward.lab.ops.rows.vectors import packed


@triton.jit
def _weighted(g, weight_ptr, at, inside):  # type: ignore[no-untyped-def]
    if weight_ptr is not None:
        # From the L1, for every row.
        g *= tl.load(weight_ptr + at, mask=inside, other=0.0).to(tl.float32)
    return g


@triton.jit(do_not_specialize=["n_rows"])
def row_norm_bwd_wide(  # type: ignore[no-untyped-def]
    g_ptr,
    s_gradient_ptr,
    x_ptr,
    weight_ptr,
    mean_ptr,
    r_ptr,
    out_ptr,
    weight_partial_ptr,
    bias_partial_ptr,
    n_rows,
    width,
    g_stride,
    s_gradient_stride,
    x_stride,
    ALIGN: tl.constexpr,
    PIECES: tl.constexpr,
    LANES: tl.constexpr,
    VECTOR: tl.constexpr,
    STAGES: tl.constexpr,
):
    width *= ALIGN
    g_stride *= ALIGN
    s_gradient_stride *= ALIGN
    x_stride *= ALIGN
    column = tl.arange(0, LANES)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    weight_totals = ()
    bias_totals = ()
    for _ in tl.static_range(PIECES):
        weight_totals = weight_totals + (tl.zeros((LANES, VECTOR), tl.float32),)
        bias_totals = bias_totals + (tl.zeros((LANES, VECTOR), tl.float32),)
    for tile in tl.range(tl.program_id(0), n_rows, tl.num_programs(0), num_stages=STAGES):
        row = tl.cast(tile, tl.int64)
        gs = ()
        xs = ()
        for piece in tl.static_range(PIECES):
            at = piece * LANES * VECTOR + column
            gs = gs + (tl.load(g_ptr + row * g_stride + at, mask=at < width, other=0.0),)
            xs = xs + (tl.load(x_ptr + row * x_stride + at, mask=at < width, other=0.0),)
        r = tl.load(r_ptr + row)
        mean, shift = 0.0, 0.0
        if mean_ptr is not None:
            mean = tl.load(mean_ptr + row)
        sums = tl.zeros((LANES,), tl.float32)
        sums_along_x = tl.zeros((LANES,), tl.float32)
        old_weight_totals, old_bias_totals = weight_totals, bias_totals
        weight_totals = ()
        bias_totals = ()
        for piece in tl.static_range(PIECES):
            at = piece * LANES * VECTOR + column
            g, x = packed(gs[piece]).to(tl.float32), (packed(xs[piece]).to(tl.float32) - mean) * r
            weight_total, bias_total = old_weight_totals[piece], old_bias_totals[piece]
            if weight_partial_ptr is not None:
                weight_total += g * x
            if bias_partial_ptr is not None:
                bias_total += g
            weight_totals = weight_totals + (weight_total,)
            bias_totals = bias_totals + (bias_total,)
            g = _weighted(g, weight_ptr, at, at < width)
            sums += tl.sum(g, 1)
            sums_along_x += tl.sum(g * x, 1)
        if mean_ptr is not None:
            # In one reduction, for which the warps wait once.
            shift, along_x = tl.split(tl.sum(tl.join(sums, sums_along_x), 0))
            shift, along_x = shift / width, along_x / width
        else:
            along_x = tl.sum(sums_along_x, 0) / width
        for piece in tl.static_range(PIECES):
            at = piece * LANES * VECTOR + column
            g, x = packed(gs[piece]).to(tl.float32), (packed(xs[piece]).to(tl.float32) - mean) * r
            out = r * (_weighted(g, weight_ptr, at, at < width) - shift - x * along_x)
            if s_gradient_ptr is not None:
                s_gradient_at = s_gradient_ptr + row * s_gradient_stride + at
                out += tl.load(s_gradient_at, mask=at < width, other=0.0).to(tl.float32)
            out = out.to(out_ptr.dtype.element_ty)
            tl.store(out_ptr + row * width + at, out, mask=at < width)
    for piece in tl.static_range(PIECES):
        at = piece * LANES * VECTOR + column
        to = tl.program_id(0) * width + at
        if weight_partial_ptr is not None:
            tl.store(weight_partial_ptr + to, weight_totals[piece], mask=at < width)
        if bias_partial_ptr is not None:
            tl.store(bias_partial_ptr + to, bias_totals[piece], mask=at < width)
