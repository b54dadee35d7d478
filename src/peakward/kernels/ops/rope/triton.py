"""Rotary position embedding in one pass over heads of any strides.

A row is one head at one position. Rows are taken in the order in which they lie in memory, whichever
of batch, heads and positions that is, so that neighbouring rows are read together.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from peakward.kernels.ops.recording import launch
from peakward.kernels.ops.rows.layout import RowSettings, alignment, tiles


@triton.jit(do_not_specialize=["n_rows", "n_turned"])
def _rope_turn(  # type: ignore[no-untyped-def]
    x_ptr,
    y_ptr,
    cos_ptr,
    sin_ptr,
    n_rows,
    n_turned,
    size1,
    size2,
    half,
    x0,
    x1,
    x2,
    x_step,
    y0,
    y1,
    y2,
    y_step,
    angle0,
    angle1,
    angle2,
    head0,
    head1,
    head2,
    ALIGN: tl.constexpr,
    INVERSE: tl.constexpr,
    WHOLE: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    half *= ALIGN
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    # Divided in 32 bits, as 64 take several times as long; offsets need 64.
    outer = row // size2
    i0, i1, i2 = outer // size1, outer % size1, row % size2
    inside = (row < n_rows) & (column < half)
    turns = i0 * head0 + i1 * head1 + i2 * head2 < n_turned
    i0, i1, i2 = i0.to(tl.int64), i1.to(tl.int64), i2.to(tl.int64)
    # Element i of the first half is turned with element i of the second, or 2i with 2i + 1.
    twice: tl.constexpr = 2 if NEIGHBOURS else 1
    apart = 1 if NEIGHBOURS else half
    wide: tl.constexpr = twice if WHOLE else 1
    angle = (i0 * angle0 + i1 * angle1 + i2 * angle2) * ALIGN + column * wide
    cos = tl.load(cos_ptr + angle, mask=inside & turns, other=1.0).to(tl.float32)
    sin = tl.load(sin_ptr + angle, mask=inside & turns, other=0.0).to(tl.float32)
    cos_high, sin_high = cos, sin
    if WHOLE:
        cos_high = tl.load(cos_ptr + angle + apart, mask=inside & turns, other=1.0).to(tl.float32)
        sin_high = tl.load(sin_ptr + angle + apart, mask=inside & turns, other=0.0).to(tl.float32)
    if INVERSE:
        sin, sin_high = -sin_high, -sin
    at = x_ptr + (i0 * x0 + i1 * x1 + i2 * x2) * ALIGN + column * (twice * x_step)
    low = tl.load(at, mask=inside)
    high = tl.load(at + apart * x_step, mask=inside)
    low_turned = (low.to(tl.float32) * cos - high.to(tl.float32) * sin).to(low.dtype)
    high_turned = (high.to(tl.float32) * cos_high + low.to(tl.float32) * sin_high).to(low.dtype)
    to = y_ptr + (i0 * y0 + i1 * y1 + i2 * y2) * ALIGN + column * (twice * y_step)
    # An infinity that is not turned would be NaN by 0·inf.
    tl.store(to, tl.where(turns, low_turned, low), mask=inside)
    tl.store(to + apart * y_step, tl.where(turns, high_turned, high), mask=inside)


def settings_for(head_dim: int, itemsize: int, *, neighbours: bool = False) -> RowSettings:
    """Tiles of halves of whole heads. Of neighbours a thread loads what lies between its elements too, so it
    has half as many: with as many as of halves it takes 189 registers."""
    n_loaded = 4 if neighbours else 2
    return tiles(head_dim // 2, itemsize=itemsize, inputs=n_loaded, most_columns=1 << 12)


def turn(
    x: Tensor,
    y: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    n_turned: int,
    inverse: bool,
    neighbours: bool = False,
    settings: RowSettings | None = None,
) -> None:
    """As `reference.rope`, in fp32 arithmetic, written to y, which may be x.

    Args:
        x, y: (batch, heads, seq_len, head_dim) of any strides, in fp32, fp16 or bf16.
        cos, sin: of equal strides, their last dimension adjacent; of head_dim, or half as wide.
        n_turned: heads, from the first.
    """
    if x.numel() == 0:
        return
    half = x.shape[-1] // 2
    chosen = settings or settings_for(x.shape[-1], x.element_size(), neighbours=neighbours)
    of_batch = cos.stride(0) if cos.dim() == 3 else 0
    angles, heads = (of_batch, 0, cos.stride(-2)), (0, 1, 0)
    order = sorted(range(3), key=x.stride, reverse=True)
    sizes = [x.shape[each] for each in order]
    rows = [[each.stride(dim) for dim in order] for each in (x, y)]
    angles_in_order = [angles[dim] for dim in order]
    align = alignment(half, *rows[0], *rows[1], *angles_in_order)
    (x_rows, y_rows), angles_in_order = (
        [[each // align for each in strides] for strides in rows],
        [each // align for each in angles_in_order],
    )
    n_rows = sizes[0] * sizes[1] * sizes[2]
    launch(
        _rope_turn,
        (triton.cdiv(n_rows, chosen.rows),),
        x,
        y,
        cos,
        sin,
        n_rows,
        n_turned,
        sizes[1],
        sizes[2],
        half // align,
        *x_rows,
        x.stride(3),
        *y_rows,
        y.stride(3),
        *angles_in_order,
        *(heads[dim] for dim in order),
        align,
        inverse,
        cos.shape[-1] == x.shape[-1],
        neighbours,
        chosen.rows,
        chosen.columns,
        num_warps=chosen.warps,
    )


def rope(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    n_turned: int,
    inverse: bool,
    neighbours: bool = False,
) -> Tensor:
    """`turn` into a new tensor that is laid out as x is."""
    y = torch.empty_like(x)
    turn(x, y, cos, sin, n_turned=n_turned, inverse=inverse, neighbours=neighbours)
    return y
