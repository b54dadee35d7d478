"""The second stage of sums over rows, which kernels make in two: each program sums up the rows that
it met, and these partial sums are added in one order, so that equal inputs give equal sums."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from peakward.kernels.ops.dependent import dependent, wait_for_the_one_before
from peakward.kernels.ops.recording import launch
from peakward.kernels.ops.rows.layout import power_of_two

COLUMNS = 32
"""A program: one line of 128 bytes of every partial sum."""
MOST_ROWS = 512
"""A round of a program's: more rounds than one wait for one another."""


@triton.jit
def _write_sum(partial_ptr, out_ptr, n_rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in tl.range(0, n_rows, ROWS):
        row = (start + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        inside = (row < n_rows) & (column < width)[None, :]
        total += tl.load(partial_ptr + row * width + column[None, :], mask=inside, other=0.0)
    out = tl.sum(total, 0).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + column, out, mask=column < width)


@triton.jit(do_not_specialize=["n_rows"])
def _column_sums(  # type: ignore[no-untyped-def]
    partial_ptr,
    other_partial_ptr,
    out_ptr,
    other_out_ptr,
    n_rows,
    width,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    wait_for_the_one_before(DEPENDENT)
    if tl.program_id(1) == 0:
        _write_sum(partial_ptr, out_ptr, n_rows, width, ROWS, COLUMNS)
    elif other_partial_ptr is not None:
        _write_sum(other_partial_ptr, other_out_ptr, n_rows, width, ROWS, COLUMNS)


def column_sums(*parts: tuple[Tensor, torch.dtype]) -> list[Tensor]:
    """The sums over n of one or two partial sums of (n, width), contiguous and of fp32: (width,) in
    their types."""
    partials = [partial for partial, _ in parts]
    outs = [partial.new_empty(partial.shape[1], dtype=dtype) for partial, dtype in parts]
    n_rows, width = partials[0].shape
    rows = min(power_of_two(n_rows), MOST_ROWS)
    launch(
        _column_sums,
        (triton.cdiv(width, COLUMNS), len(parts)),
        *(*partials, None)[:2],
        *(*outs, None)[:2],
        n_rows,
        width,
        rows,
        COLUMNS,
        num_warps=max(4, rows // 32),
        **dependent(),
    )
    return outs
