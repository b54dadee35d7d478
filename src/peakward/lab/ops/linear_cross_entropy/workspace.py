"""The memory that implementations work in, and products that add up in fp32."""

import torch
from torch import Tensor

LEAST_BYTES = 256 << 20
COLUMNS = 16
"""Rows of a workspace begin at multiples of so many elements: cuBLAS and vector loads want 16 bytes,
Triton takes multiples of 16 as known."""
STEP = 128
"""A dimension that is cut is cut at a multiple of this: of the tiles of matrix products."""


def workspace_bytes(weight: Tensor) -> int:
    """What an implementation may take for a chunk where no bound is given: as much as the weight
    itself, and 256 MiB at least, so that memory is O(vocab·d) however many tokens there are.

    A chunk costs a pass over d_weight or d_hidden in fp32, so that few are wanted.
    """
    return max(LEAST_BYTES, weight.numel() * weight.element_size())


def chunk_length(length: int, row_bytes: int, n_bytes: int) -> int:
    """Of a dimension of `length`, as much as makes equal chunks of at most `n_bytes`, rounded up to
    tiles; one tile at least."""
    most = max(STEP, n_bytes // row_bytes // STEP * STEP)
    n_chunks = max(1, -(-length // most))
    return min(length, round_up(-(-length // n_chunks), STEP))


def round_up(number: int, step: int) -> int:
    return -(-number // step) * step


def add_product(total: Tensor, a: Tensor, b: Tensor, *, first: bool) -> None:
    """total (+)= a·b in fp32, whatever type a and b have; the first one overwrites."""
    if a.dtype == torch.float32 or a.device.type == "cpu":
        total.addmm_(a.float(), b.float(), beta=0 if first else 1)
    elif first:
        torch.mm(a, b, out_dtype=torch.float32, out=total)
    else:
        torch.addmm(total, a, b, out_dtype=torch.float32, out=total)
