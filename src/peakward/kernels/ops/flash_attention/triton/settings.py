"""Block sizes, by head width and type: choices to be measured, without a table of GPUs."""

from typing import NamedTuple

import torch


class Blocks(NamedTuple):
    """How one kernel is cut into programs."""

    queries: int
    keys: int
    num_warps: int
    num_stages: int


class ForwardSettings(NamedTuple):
    """How the forward pass is launched."""

    blocks: Blocks
    descriptors: bool
    """Loads by tensor descriptors (capability 9.0), where strides allow it."""
    precision: str = "bf16x6"
    """How fp32 products are computed: "bf16x6", "tf32x3" or "ieee". Where one key is seen, torch copies
    the value; tf32x3 then errs by up to 2e-7, and bf16x6 copies it too. bf16x6 is also nearer over
    1,000 keys (2.2e-7 for 6.5e-7), and took 153 µs for 170 (2,048 causal, head dimension 64, an H100)."""


class BackwardSettings(NamedTuple):
    """How the backward pass is launched."""

    by_keys: Blocks
    """The pass over key blocks, which makes dk and dv."""
    by_queries: Blocks
    """The pass over query blocks, which makes dq."""
    descriptors: bool
    precision: str = "bf16x6"
    """As of the forward pass; it took 470 µs for 417."""


FORWARD = tuple(
    Blocks(*each)
    for each in (
        (128, 64, 4, 2), (128, 64, 4, 3), (128, 64, 8, 2), (128, 64, 8, 3), (128, 128, 8, 3),
        (64, 64, 4, 2), (64, 64, 4, 3), (64, 64, 4, 4), (64, 128, 4, 2), (64, 128, 4, 3),
        (64, 32, 4, 3),
    )
)  # fmt: skip
"""The settings for 16 bits with which a GPU may be fastest; those below are for other cases."""
BY_KEYS = tuple(
    Blocks(*each)
    for each in (
        (64, 64, 4, 2), (64, 64, 4, 3), (64, 64, 8, 2), (64, 128, 8, 2), (32, 64, 4, 2),
        (32, 64, 4, 3), (32, 128, 8, 2), (128, 64, 8, 2),
    )
)  # fmt: skip
BY_QUERIES = tuple(
    Blocks(*each)
    for each in (
        (64, 64, 4, 2), (64, 64, 4, 3), (128, 64, 8, 2), (128, 64, 8, 3), (128, 32, 8, 3),
        (64, 32, 4, 3),
    )
)  # fmt: skip


def forward_settings_for(head_dim: int, dtype: torch.dtype, capability: int) -> ForwardSettings:
    """Blocks that spill few registers if any."""
    return ForwardSettings(
        blocks=_forward_blocks(head_dim, dtype, capability),
        descriptors=_descriptors(dtype, capability),
    )


def backward_settings_for(head_dim: int, dtype: torch.dtype, capability: int) -> BackwardSettings:
    """Blocks that spill few registers if any."""
    return BackwardSettings(
        by_keys=_by_keys(head_dim, dtype, capability),
        by_queries=_by_queries(head_dim, dtype, capability),
        descriptors=_descriptors(dtype, capability),
    )


def _descriptors(dtype: torch.dtype, capability: int) -> bool:
    # What a descriptor loads in fp32 is kept in registers, and products make parts of each: of tf32x3 32
    # queries of 128 spilled 672 bytes a thread, by pointers and through shared memory none.
    return capability >= 90 and dtype != torch.float32


def _forward_blocks(head_dim: int, dtype: torch.dtype, capability: int) -> Blocks:
    if dtype == torch.float32:
        return _fp32_forward(head_dim, capability)
    if head_dim > 128:
        return Blocks(64, 32, 8, 2) if capability < 90 else Blocks(128, 64, 8, 2)
    # From here on by sweeps on an H100, bf16, 4,096 causal
    # (results/2026-11-22-h100-kernel-sweep-flash_attention).
    if capability < 90:
        return Blocks(128, 64, 4 if head_dim == 64 else 8, 3)
    if head_dim <= 32 or head_dim == 128:
        return Blocks(64, 64, 4, 3)
    if head_dim == 64:
        return Blocks(64, 128, 4, 2)
    return Blocks(128, 64, 4 if head_dim <= 80 else 8, 3)


def _by_keys(head_dim: int, dtype: torch.dtype, capability: int) -> Blocks:
    if dtype == torch.float32:
        return _fp32_by_keys(head_dim, capability)
    if capability < 90:
        return Blocks(32, 64, 4 if head_dim <= 64 else 8, 2 if head_dim <= 128 else 1)
    if head_dim <= 128:
        return Blocks(64, 64, 4, 3 if head_dim <= 80 else 2)
    return Blocks(64, 64, 8, 2)


def _by_queries(head_dim: int, dtype: torch.dtype, capability: int) -> Blocks:
    if dtype == torch.float32:
        return _fp32_by_queries(head_dim, capability)
    if capability < 90:
        return Blocks(64, 64, 4, 2) if head_dim <= 128 else Blocks(64, 32, 8, 1)
    if head_dim <= 96:
        return Blocks(64, 64, 4, 3 if head_dim <= 64 else 2)
    return Blocks(128, 64 if head_dim <= 128 else 32, 8, 3)


def _fp32_forward(head_dim: int, capability: int) -> Blocks:
    if _by_warpgroups(head_dim, capability):
        return Blocks(64, {64: 64, 128: 32, 256: 16}[head_dim], 4, 1)
    # Of 256 32 × 16 spilled 5.7 KB a thread.
    return Blocks(32, 32, 4, 2) if head_dim <= 128 else Blocks(16, 32, 8, 2)


def _fp32_by_keys(head_dim: int, capability: int) -> Blocks:
    if _by_warpgroups(head_dim, capability):
        return Blocks(64 if head_dim == 64 else 16, 64, 4, 1)
    if head_dim > 128:
        return Blocks(16, 16, 8, 1)
    return Blocks(32, 32, 4, 1) if head_dim <= 64 else Blocks(16, 32, 8, 1)


def _fp32_by_queries(head_dim: int, capability: int) -> Blocks:
    if _by_warpgroups(head_dim, capability):
        return Blocks(64, 64 if head_dim == 64 else 16, 4, 1)
    return Blocks(32, 32, 4, 1) if head_dim <= 64 else Blocks(16, 32, 8, 1)


def _by_warpgroups(head_dim: int, capability: int) -> bool:
    """Whether products in parts of fp32 have 64 rows, as many as a warpgroup's.

    Of 16 heads over 2,048 tokens an H100 took forward 304 µs for 526 of smaller blocks at 64 and 633 for
    1,001 at 128, backward 0.98 ms for 1.7 and 3.2 for 9.7
    (results/2026-11-23-h100-kernel-trials-fp32_attention). Of other head dimensions no: with Triton 3.6 a
    head in two parts, of 40, had wrong last columns, and one of 96 read where nothing is.
    """
    return capability == 90 and head_dim in (64, 128, 256)
