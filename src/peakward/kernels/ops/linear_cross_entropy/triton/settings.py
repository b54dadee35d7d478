"""How products are cut into tiles; no result depends on it beyond rounding."""

from typing import NamedTuple

import torch
import triton

from peakward.kernels.ops.rows.layout import multiprocessors


class Settings(NamedTuple):
    """How products are cut into tiles."""

    block_tokens: int
    block_vocab: int
    block_width: int
    group: int
    """Tiles of tokens that share a tile of the weight while it is in the L2."""
    num_warps: int
    num_stages: int
    described: bool
    """Whether tiles are moved by tensor descriptors, which compute capability 9.0 brought: before
    it Triton puts loads of single elements in their place."""
    resident: bool = False
    """Whether one program a multiprocessor takes tiles in turn, so that the next one's first loads
    are under way while this one's exponentials are summed."""


def settings_for(dtype: torch.dtype, capability: int) -> Settings:
    """Tiles of fp16 and bf16 for the tensor cores; fp32 runs without them. Resident programs took 686
    µs for 768 on an H100, of 8,192 × 768 × 32,000, and 2.79 ms for 2.86 with a width of 4,096.

    Args:
        capability: ten times the compute capability.
    """
    described = capability >= 90
    if dtype == torch.float32:
        return Settings(64, 64, 16, 8, num_warps=8, num_stages=2, described=described)
    if described:
        return Settings(128, 256, 64, 8, num_warps=8, num_stages=3, described=True, resident=True)
    return Settings(128, 128, 32, 8, num_warps=8, num_stages=4, described=False)


def gradient_settings_for(dtype: torch.dtype, capability: int) -> Settings:
    """As `settings_for`; resident programs write half a tile at a time and have a stage more: 177 µs for
    226 on an H100, of 8,192 columns of 8,192 × 768, and 753 for 908 with a width of 4,096, beside tiles
    of 128 × 128, two to a multiprocessor. cuBLAS's product alone takes 151 and 738."""
    cut = settings_for(dtype, capability)
    return cut._replace(num_stages=4) if cut.resident else cut


def capability_here() -> int:
    if triton.knobs.runtime.interpret:
        return 90
    return triton.runtime.driver.active.get_current_target().arch


def programs(n_tokens: int, n_columns: int, cut: Settings, device: torch.device) -> int:
    """How many a launch has."""
    n_tiles = triton.cdiv(n_tokens, cut.block_tokens) * triton.cdiv(n_columns, cut.block_vocab)
    return min(n_tiles, multiprocessors(device)) if cut.resident else n_tiles


def meta(cut: Settings) -> dict[str, int]:
    """How a launch cuts its tiles."""
    return {
        "TOKENS": cut.block_tokens,
        "VOCAB": cut.block_vocab,
        "WIDTH": cut.block_width,
        "GROUP": cut.group,
        "DESCRIBED": cut.described,
        "RESIDENT": cut.resident,
        "num_warps": cut.num_warps,
        "num_stages": cut.num_stages,
    }
