"""The memory that implementations work in."""

import torch
from torch import Tensor

LEAST_BYTES = 256 << 20
LEAST_TOKENS = 4096
"""The least tokens of a chunk, with logits in 16 bits. Adding to d_weight in fp32 takes 3% of the time
of a chunk's products with so many tokens, 10% with 2,048 and 28% with 1,024 (H100, 4,096 × 32,000)."""
COLUMNS = 16
"""Rows of a workspace begin at multiples of so many elements: cuBLAS and vector loads want 16 bytes,
Triton takes multiples of 16 as known."""
VECTOR = 8
"""Elements of 16 bits that cuBLAS's fast kernels load at once."""
STEP = 128
"""A dimension that is cut is cut at a multiple of this: of the tiles of matrix products."""


def workspace_bytes(weight: Tensor) -> int:
    """The memory of a chunk where no bound is given: as much as the weight itself, and at least 256
    MiB. Memory is then O(vocab·d) however many tokens there are.

    Each chunk costs a pass over d_weight or d_hidden in fp32, so few chunks are better.
    """
    return max(LEAST_BYTES, weight.numel() * weight.element_size())


def tokens_bytes(weight: Tensor) -> int:
    """The same for chunks of tokens; one chunk has at least `LEAST_TOKENS`."""
    return max(workspace_bytes(weight), 2 * LEAST_TOKENS * row_length(weight.shape[0]))


def whole_bytes(weight: Tensor) -> int:
    """The memory that all logits may take at once where no bound is given. It is that of a chunk of
    tokens and of the weight's gradient in fp32, less that gradient in its own type, so the peak is no
    higher."""
    sums_bytes = (torch.float32.itemsize - weight.element_size()) * weight.numel()
    return tokens_bytes(weight) + sums_bytes


def row_length(vocab: int) -> int:
    """The number of elements from one row of logits to the next."""
    return round_up(vocab, COLUMNS)


def chunk_length(length: int, row_bytes: int, n_bytes: int) -> int:
    """The length of equal chunks of at most `n_bytes` along a dimension of `length`, rounded up to
    tiles; at least one tile."""
    if length * row_bytes <= n_bytes:
        return length
    most = max(STEP, n_bytes // row_bytes // STEP * STEP)
    n_chunks = max(1, -(-length // most))
    return min(length, round_up(-(-length // n_chunks), STEP))


def round_up(number: int, step: int) -> int:
    return -(-number // step) * step
