"""Adds up what programs that share columns left, always in the same order."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from peakward.kernels.ops.dependent import dependent, wait_for_the_one_before
from peakward.kernels.ops.recording import launch

BLOCK = 256


@triton.jit
def quantized_matmul_sums(  # type: ignore[no-untyped-def]
    parts_ptr,
    out_ptr,
    n_elements,
    n_splits,
    ALL_SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    wait_for_the_one_before(DEPENDENT)
    offset = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < n_elements
    split = tl.arange(0, ALL_SPLITS)
    parts = parts_ptr + split.to(tl.int64)[:, None] * n_elements + offset[None, :]
    there = (split < n_splits)[:, None] & inside[None, :]
    total = tl.sum(tl.load(parts, mask=there, other=0.0), 0)
    tl.store(out_ptr + offset, total.to(out_ptr.dtype.element_ty), mask=inside)


def parts_of(out: Tensor, n_splits: int) -> Tensor:
    """Where programs leave what they sum: `out` itself, or (n_splits, *out.shape) in fp32, uninitialised."""
    if n_splits == 1:
        return out
    return torch.empty((n_splits, *out.shape), dtype=torch.float32, device=out.device)


def added_up(parts: Tensor, out: Tensor) -> Tensor:
    """`out`, filled with the sum of what `parts_of` gave for it."""
    if parts is not out:
        launch(
            quantized_matmul_sums,
            (triton.cdiv(out.numel(), BLOCK),),
            parts,
            out,
            out.numel(),
            len(parts),
            ALL_SPLITS=triton.next_power_of_2(len(parts)),
            BLOCK=BLOCK,
            num_warps=4,
            **dependent(),
        )
    return out
