"""The second stage of sums over rows, which kernels make in two: each program sums up the rows that
it met, and these partial sums are added in one order, so that equal inputs give equal sums."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from peakward.lab.ops.rows.layout import power_of_two

COLUMNS = 32
"""A program: one line of 128 bytes of every partial sum."""
MOST_ROWS = 512
"""A round of a program's: more rounds than one wait for one another."""


@triton.jit(do_not_specialize=["n_rows"])
def _column_sum(  # type: ignore[no-untyped-def]
    partial_ptr, out_ptr, n_rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in tl.range(0, n_rows, ROWS):
        row = (start + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        inside = (row < n_rows) & (column < width)[None, :]
        total += tl.load(partial_ptr + row * width + column[None, :], mask=inside, other=0.0)
    out = tl.sum(total, 0).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + column, out, mask=column < width)


def column_sums(partial: Tensor, dtype: torch.dtype) -> Tensor:
    """Sums of (n, width), contiguous and of fp32, over n: (width,) of `dtype`."""
    n_rows, width = partial.shape
    out = torch.empty(width, dtype=dtype, device=partial.device)
    rows = min(power_of_two(n_rows), MOST_ROWS)
    _column_sum[(triton.cdiv(width, COLUMNS),)](
        partial, out, n_rows, width, rows, COLUMNS, num_warps=max(4, rows // 32)
    )
    return out
