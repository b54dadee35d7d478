"""The chain of loads on a GPU: one warp, whose every load waits for the one before it."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _chase(table_ptr, position_ptr, n_loads):  # type: ignore[no-untyped-def]
    offset = tl.load(position_ptr)
    for _ in range(n_loads):
        offset = tl.load((table_ptr + offset).to(tl.pointer_type(tl.int64)))
    tl.store(position_ptr, offset)


def chase(table: Tensor, position: Tensor, n_loads: int) -> None:
    """As `reference.chase`, on CUDA."""
    _chase[(1,)](table.view(torch.int8), position, n_loads, num_warps=1)
