"""The memory that implementations work in."""

import torch
from torch import Tensor

LEAST_BYTES = 256 << 20
LEAST_TOKENS = 4096
"""Of logits in 16 bits. To add to d_weight in fp32 takes 3% of the time of a chunk's products with so
many, 10% with 2,048 and 28% with 1,024 (H100, 4,096 × 32,000)."""
COLUMNS = 16
"""Rows of a workspace begin at multiples of so many elements: cuBLAS and vector loads want 16 bytes,
Triton takes multiples of 16 as known."""
VECTOR = 8
"""Elements of 16 bits that cuBLAS's fast kernels load at once."""
STEP = 128
"""A dimension that is cut is cut at a multiple of this: of the tiles of matrix products."""


def workspace_bytes(weight: Tensor) -> int:
    """What an implementation may take for a chunk where no bound is given: as much as the weight
    itself, and 256 MiB at least, so that memory is O(vocab·d) however many tokens there are.

    A chunk costs a pass over d_weight or d_hidden in fp32, so that few are wanted.
    """
    return max(LEAST_BYTES, weight.numel() * weight.element_size())


def tokens_bytes(weight: Tensor) -> int:
    """The same of chunks of tokens, of which one has `LEAST_TOKENS` at least."""
    return max(workspace_bytes(weight), 2 * LEAST_TOKENS * row_length(weight.shape[0]))


def whole_bytes(weight: Tensor) -> int:
    """What all logits may take at once where no bound is given: as much as a chunk of tokens and the
    weight's gradient in fp32, less that gradient in its own type, so that no more is held in the end."""
    sums_bytes = (torch.float32.itemsize - weight.element_size()) * weight.numel()
    return tokens_bytes(weight) + sums_bytes


def row_length(vocab: int) -> int:
    """Elements from one row of logits to the next."""
    return round_up(vocab, COLUMNS)


def chunk_length(length: int, row_bytes: int, n_bytes: int) -> int:
    """Of a dimension of `length`, as much as makes equal chunks of at most `n_bytes`, rounded up to
    tiles; one tile at least."""
    if length * row_bytes <= n_bytes:
        return length
    most = max(STEP, n_bytes // row_bytes // STEP * STEP)
    n_chunks = max(1, -(-length // most))
    return min(length, round_up(-(-length // n_chunks), STEP))


def round_up(number: int, step: int) -> int:
    return -(-number // step) * step
