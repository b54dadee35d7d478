"""Starts the kernels."""

import torch
import triton
from torch import Tensor

from peakward.lab.ops.quantized_matmul.triton.direct import quantized_matmul_direct
from peakward.lab.ops.quantized_matmul.triton.settings import (
    H100_MULTIPROCESSORS,
    Direct,
    Shared,
    channels_of,
    settings_for,
)
from peakward.lab.ops.quantized_matmul.triton.shared import quantized_matmul_shared
from peakward.lab.ops.quantized_matmul.triton.sums import quantized_matmul_sums
from peakward.lab.ops.quantized_matmul.triton.widened import POWERS
from peakward.lab.ops.quantized_matmul.triton.words import TILE

BLOCK_SUM = 256


def int8_matmul(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    *,
    settings: Direct | Shared | None = None,
    n_multiprocessors: int = H100_MULTIPROCESSORS,
) -> Tensor:
    """As `reference.int8_matmul`, summed in fp32; every tensor contiguous but for x's rows."""
    n, k = weight.shape
    groups = max(1, len(scale))
    group = min(TILE.value, k // groups) if groups > 1 else TILE.value
    words = weight
    if k % 4 == 0 and weight.storage_offset() % 4 == 0:
        words = weight.view(torch.int32)
    return _matmul(
        x,
        words,
        scale,
        None,
        n=n,
        nibbles=False,
        group=group,
        tiles_per_scale=k // groups // group if groups > 1 else triton.cdiv(k, group),
        settings=settings,
        n_multiprocessors=n_multiprocessors,
    )


def int4_matmul(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    zero: Tensor | None = None,
    *,
    settings: Direct | Shared | None = None,
    n_multiprocessors: int = H100_MULTIPROCESSORS,
) -> Tensor:
    """As `reference.int4_matmul`, summed in fp32; every tensor contiguous but for x's rows."""
    return _matmul(
        x,
        weight,
        scale,
        zero,
        n=weight.shape[1],
        nibbles=True,
        group=x.shape[1] // len(scale),
        tiles_per_scale=1,
        settings=settings,
        n_multiprocessors=n_multiprocessors,
    )


def _matmul(
    x: Tensor,
    words: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    *,
    n: int,
    nibbles: bool,
    group: int,
    tiles_per_scale: int,
    settings: Direct | Shared | None,
    n_multiprocessors: int,
) -> Tensor:
    m, k = x.shape
    n_tiles = triton.cdiv(k, TILE.value)
    settings = settings or settings_for(
        m=m,
        n=n,
        n_tiles=n_tiles,
        bits=4 if nibbles else 8,
        group=group,
        dtype=x.dtype,
        n_multiprocessors=n_multiprocessors,
    )
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    n_splits = settings.n_splits
    parts = out
    if n_splits > 1:
        parts = torch.empty((n_splits, m, n), dtype=torch.float32, device=x.device)
    if isinstance(settings, Direct):
        kernel = quantized_matmul_direct
        more = {"CHANNELS": settings.channels, "DEPTH": settings.depth}
        if settings.channels == 32:
            # As `settings` reckons what is resident; with zeros it would be 140.
            more["maxnreg"] = 128
    else:
        kernel, more = quantized_matmul_shared, {"STAGES": settings.n_stages}
    grid = (triton.cdiv(n, channels_of(settings)), n_splits, triton.cdiv(m, settings.rows))
    kernel[grid](
        x,
        words,
        scale,
        zero,
        parts,
        m,
        n,
        k,
        n_tiles,
        len(scale),
        tiles_per_scale,
        x.stride(0),
        words.stride(0),
        POWERS[x.dtype],
        NIBBLES=nibbles,
        GROUP=group,
        HAS_ZEROS=zero is not None,
        ROWS=settings.rows,
        WARPS=settings.warps,
        num_warps=settings.warps,
        num_stages=1,
        **more,
    )
    if n_splits > 1:
        quantized_matmul_sums[(triton.cdiv(out.numel(), BLOCK_SUM),)](
            parts,
            out,
            out.numel(),
            n_splits,
            ALL_SPLITS=triton.next_power_of_2(n_splits),
            BLOCK=BLOCK_SUM,
            num_warps=4,
        )
    return out
