"""The memory that implementations work in."""

from torch import Tensor

LEAST_BYTES = 256 << 20
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
