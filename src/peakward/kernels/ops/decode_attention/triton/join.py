"""Joins the results of the pieces of the keys."""

import triton
import triton.language as tl
from torch import Tensor

from peakward.kernels.ops.dependent import dependent, wait_for_the_one_before
from peakward.kernels.ops.recording import launch

BLOCK_SPLITS = 16


@triton.jit
def _decode_attention_join(  # type: ignore[no-untyped-def]
    parts_ptr,
    part_lses_ptr,
    out_ptr,
    lse_ptr,
    n_rows,
    n_splits,
    HEAD_DIM: tl.constexpr,
    ALL_SPLITS: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """One row of the pieces' outputs (n_splits, n_rows, HEAD_DIM), each weighed by its share."""
    wait_for_the_one_before(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    every = tl.arange(0, ALL_SPLITS)
    lses = part_lses_ptr + every.to(tl.int64) * n_rows + row
    part_lses = tl.load(lses, mask=every < n_splits, other=float("-inf"))
    largest = tl.max(part_lses, 0)
    shift = tl.where(largest == float("-inf"), 0.0, largest)
    total = tl.sum(tl.exp(part_lses - shift), 0)
    dim = tl.arange(0, BLOCK_DIM)
    acc = tl.zeros((BLOCK_SPLITS, BLOCK_DIM), tl.float32)
    for start in range(0, n_splits, BLOCK_SPLITS):
        split = start + tl.arange(0, BLOCK_SPLITS)
        part_row = split.to(tl.int64) * n_rows + row
        part_lse = tl.load(part_lses_ptr + part_row, mask=split < n_splits, other=float("-inf"))
        there = (part_lse != float("-inf"))[:, None] & (dim < HEAD_DIM)[None, :]
        parts = parts_ptr + part_row[:, None] * HEAD_DIM + dim[None, :]
        acc += tl.exp(part_lse - shift)[:, None] * tl.load(parts, mask=there, other=0.0)
    is_empty = total == 0.0
    total = tl.where(is_empty, 1.0, total)
    tl.store(lse_ptr + row, tl.where(is_empty, float("-inf"), shift + tl.log(total)))
    out = tl.sum(acc, 0) / total
    tl.store(out_ptr + row * HEAD_DIM + dim, out.to(out_ptr.dtype.element_ty), mask=dim < HEAD_DIM)


def join(parts: Tensor, part_lses: Tensor, out: Tensor, lse: Tensor) -> None:
    """Writes out and lse, (…, head_dim) and (…), of as many pieces as the first two begin with, in fp32."""
    n_splits, head_dim = len(parts), out.shape[-1]
    n_rows = lse.numel()
    launch(
        _decode_attention_join,
        (n_rows,),
        parts,
        part_lses,
        out,
        lse,
        n_rows,
        n_splits,
        HEAD_DIM=head_dim,
        ALL_SPLITS=triton.next_power_of_2(n_splits),
        BLOCK_SPLITS=BLOCK_SPLITS,
        BLOCK_DIM=max(16, triton.next_power_of_2(head_dim)),
        num_warps=4,
        **dependent(),
    )
