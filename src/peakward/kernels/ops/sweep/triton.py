"""Sweeps of a working set on a GPU, each byte from the L2 or from memory.

All programs walk one list, the blocks of the set over and over: what is read at one moment lies within
a few MiB, so that no sweep finds in a cache what another is just reading. `.cg` keeps the L1 out, of
which all multiprocessors together have more than half of an H100's L2.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from peakward.kernels.ops.recording import launch

BLOCK = 2048
"""fp32 values that a program reads at once: 8 KiB, four loads of 16 bytes for each of its threads."""
N_WARPS = 4
PROGRAMS_PER_MULTIPROCESSOR = 8
"""64 KiB on their way for each: some 8 MiB on an H100, of which 7 TB/s at 350 ns a load need 2.5."""


@triton.jit
def _sweep(values_ptr, sums_ptr, n_blocks, n_reads, n_programs, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    places = tl.arange(0, BLOCK)
    total = tl.full((BLOCK,), 0.0, tl.float32)
    for at in range(tl.program_id(0), n_reads, n_programs):
        block = values_ptr + (at % n_blocks) * BLOCK
        total += tl.load(block + places, cache_modifier=".cg")
    tl.store(sums_ptr + tl.program_id(0) * BLOCK + places, total)


def sweep(values: Tensor, n_sweeps: int, n_programs: int) -> Tensor:
    """As `reference.sweep`, on CUDA, in parts.

    Args:
        values: fp32, contiguous, a whole number of blocks, fewer than 2**31 values.
        n_sweeps: how often each is read; fewer than 2**31 blocks in all.
        n_programs: that run side by side: as many as the GPU holds.

    Returns:
        fp32 (n_programs, BLOCK): what each program read at each place of its blocks. They add up to
        the reference's.
    """
    sums = torch.empty((n_programs, BLOCK), dtype=torch.float32, device=values.device)
    n_blocks = values.numel() // BLOCK
    launch(
        _sweep,
        (n_programs,),
        values,
        sums,
        n_blocks,
        n_blocks * n_sweeps,
        n_programs,
        BLOCK=BLOCK,
        num_warps=N_WARPS,
    )
    return sums
