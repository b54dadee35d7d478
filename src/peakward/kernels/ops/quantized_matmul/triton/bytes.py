"""Products of one row of x, in 16 bits, with a weight of 8 bits, read along its rows.

What lanes multiply comes through shared memory, a row's bytes by the 128: a lane that loads what it
multiplies (`direct`) has 64 of a row beside one another, and 8,192² took 53.9 µs for 35.6 so (H100).
"""

import triton
import triton.language as tl


@triton.jit
def _floats(w):  # type: ignore[no-untyped-def]
    """Bytes in fp32: set below the bits of 2²³, a byte plus 128 is 2²³ plus that; conversions themselves are
    an instruction of a quarter of the rate."""
    bits = w.to(tl.int32) & 0xFF ^ 0x4B000080
    return bits.to(tl.float32, bitcast=True) - (2.0**23 + 128)


@triton.jit
def quantized_matmul_row(  # type: ignore[no-untyped-def]
    x_ptr,
    w_ptr,
    scale_ptr,
    out_ptr,
    n,
    k,
    n_steps,
    steps_per_scale,
    CHANNELS: tl.constexpr,
    COLUMNS: tl.constexpr,
    GROUPED: tl.constexpr,
    STAGES: tl.constexpr,
):
    """CHANNELS channels of the only row of x, over this split's steps of COLUMNS."""
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channel < n
    within = tl.arange(0, COLUMNS)
    rows = w_ptr + channel.to(tl.int64)[:, None] * k
    acc = tl.zeros((CHANNELS, COLUMNS), tl.float32)
    per_split = tl.cdiv(n_steps, tl.num_programs(1))
    low = tl.program_id(1) * per_split
    high = tl.minimum(low + per_split, n_steps)
    for step in tl.range(low, high, num_stages=STAGES):
        column = step * COLUMNS + within
        inside = is_channel[:, None] & (column < k)[None, :]
        w = tl.load(rows + column[None, :], mask=inside, other=0)
        x = tl.load(x_ptr + column, mask=column < k, other=0.0).to(tl.float32)
        product = _floats(w) * x[None, :]
        if GROUPED:
            at = (step // steps_per_scale) * n + channel
            scale = tl.load(scale_ptr + at, mask=is_channel, other=0.0).to(tl.float32)
            product *= scale[:, None]
        acc += product
    out = tl.sum(acc, 1)
    if not GROUPED:
        out *= tl.load(scale_ptr + channel, mask=is_channel, other=0.0).to(tl.float32)
    outs = out_ptr + tl.program_id(1).to(tl.int64) * n + channel
    tl.store(outs, out.to(out_ptr.dtype.element_ty), mask=is_channel)
