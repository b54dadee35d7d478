"""Adds up what programs that share columns left, always in the same order."""

import triton
import triton.language as tl


@triton.jit
def quantized_matmul_sums(  # type: ignore[no-untyped-def]
    parts_ptr,
    out_ptr,
    n_elements,
    n_splits,
    ALL_SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < n_elements
    split = tl.arange(0, ALL_SPLITS)
    parts = parts_ptr + split.to(tl.int64)[:, None] * n_elements + offset[None, :]
    there = (split < n_splits)[:, None] & inside[None, :]
    total = tl.sum(tl.load(parts, mask=there, other=0.0), 0)
    tl.store(out_ptr + offset, total.to(out_ptr.dtype.element_ty), mask=inside)
