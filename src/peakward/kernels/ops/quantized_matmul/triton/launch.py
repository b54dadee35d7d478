"""Starts the kernels."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch
import triton
from torch import Tensor

from peakward.kernels.ops.dependent import dependent
from peakward.kernels.ops.quantized_matmul.triton.bytes import quantized_matmul_row
from peakward.kernels.ops.quantized_matmul.triton.candidates import of_bytes, of_words, rounded
from peakward.kernels.ops.quantized_matmul.triton.digits import (
    quantized_matmul_digits,
    quantized_matmul_split,
)
from peakward.kernels.ops.quantized_matmul.triton.direct import quantized_matmul_direct
from peakward.kernels.ops.quantized_matmul.triton.settings import (
    ALIGNED_BYTES,
    H100_MULTIPROCESSORS,
    Digits,
    Direct,
    Row,
    Settings,
    Shared,
    byte_settings_for,
    channels_of,
    word_settings_for,
)
from peakward.kernels.ops.quantized_matmul.triton.shared import quantized_matmul_shared
from peakward.kernels.ops.quantized_matmul.triton.sums import added_up, parts_of
from peakward.kernels.ops.quantized_matmul.triton.widened import POWERS
from peakward.kernels.ops.quantized_matmul.triton.words import TILE
from peakward.kernels.ops.recording import launch
from peakward.kernels.ops.tuning import tuned

S = TypeVar("S", bound=Settings)
GROUPS = 8
"""Groups of columns that a program splits."""


def int8_matmul(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    *,
    settings: Settings | None = None,
    n_multiprocessors: int = H100_MULTIPROCESSORS,
) -> Tensor:
    """As `reference.int8_matmul`, summed in fp32; every tensor contiguous but for x's rows."""
    n, k = weight.shape
    groups = max(1, len(scale))
    group = min(TILE.value, k // groups) if groups > 1 else TILE.value
    n_tiles = triton.cdiv(k, TILE.value)
    rule = settings or byte_settings_for(
        m=len(x),
        n=n,
        n_tiles=n_tiles,
        group=group,
        dtype=x.dtype,
        n_multiprocessors=n_multiprocessors,
        grouped=groups > 1,
        aligned=k % ALIGNED_BYTES == 0,
    )
    settings = settings or _tuned(
        partial(int8_matmul, x, weight, scale),
        rule,
        lambda: (
            of_words(x, n, n_tiles, n_multiprocessors)
            if isinstance(rule, Direct | Shared)
            else of_bytes(rule, n_tiles, grouped=groups > 1)
        ),
        x,
        f"8 bits, {groups} groups of {k} columns, {n} channels",
    )
    if isinstance(settings, Row):
        return _row(x, weight, scale, settings, tile=group)
    if isinstance(settings, Digits):
        return _digits(x, weight, scale, settings, tile=group)
    words = weight
    if k % 4 == 0 and weight.storage_offset() % 4 == 0:
        words = weight.view(torch.int32)
    tiles_per_scale = k // groups // group if groups > 1 else n_tiles
    return _by_words(x, words, scale, None, settings, n=n, group=group, per_scale=tiles_per_scale)


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
    n, group = weight.shape[1], x.shape[1] // len(scale)
    settings = settings or _tuned(
        partial(int4_matmul, x, weight, scale, zero),
        word_settings_for(
            m=len(x),
            n=n,
            n_tiles=len(weight),
            group=group,
            dtype=x.dtype,
            n_multiprocessors=n_multiprocessors,
        ),
        lambda: of_words(x, n, len(weight), n_multiprocessors),
        x,
        (
            f"4 bits{'' if zero is None else ' with zeros'}, groups of {group} of {x.shape[1]} columns, "
            f"{n} channels"
        ),
    )
    return _by_words(x, weight, scale, zero, settings, n=n, group=group, per_scale=1)


def _tuned(
    start: Callable[..., Tensor],
    rule: S,
    others: Callable[[], Sequence[S]],
    x: Tensor,
    weight: str,
) -> S:
    """By rule, or where asked for the fastest."""
    if x.numel() == 0:
        return rule
    return tuned(
        "quantized_matmul",
        lambda: f"{x.dtype}, up to {rounded(len(x))} rows, {weight}",
        x.device,
        rule=rule,
        others=others,
        start=lambda each: (start(settings=each),),
    )


def _row(x: Tensor, weight: Tensor, scale: Tensor, settings: Row, *, tile: int) -> Tensor:
    """One row of x; a scale has a whole number of tiles of so many columns, a power of two."""
    n, k = weight.shape
    out = torch.empty((1, n), dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    parts = parts_of(out, settings.n_splits)
    grouped = len(scale) > 1
    columns = min(settings.columns, tile) if grouped else settings.columns
    launch(
        quantized_matmul_row,
        (triton.cdiv(n, settings.channels), settings.n_splits),
        x,
        weight,
        scale,
        parts,
        n,
        k,
        triton.cdiv(k, columns),
        triton.cdiv(k, columns * len(scale)),
        CHANNELS=settings.channels,
        COLUMNS=columns,
        GROUPED=grouped,
        STAGES=settings.n_stages,
        num_warps=settings.warps,
    )
    return added_up(parts, out)


def _digits(x: Tensor, weight: Tensor, scale: Tensor, settings: Digits, *, tile: int) -> Tensor:
    """As `_row`, of any number of rows."""
    (m, k), n = x.shape, len(weight)
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    held, unit = _split(x, tile=tile) if settings.is_apart else (x, None)
    waits = dependent() if settings.is_apart else {"DEPENDENT": False}
    parts = parts_of(out, settings.n_splits)
    launch(
        quantized_matmul_digits,
        (triton.cdiv(n, settings.channels), settings.n_splits, triton.cdiv(m, settings.rows)),
        held,
        unit,
        weight,
        scale,
        parts,
        m,
        n,
        k,
        triton.cdiv(k, tile),
        triton.cdiv(k, tile * len(scale)),
        held.stride(0),
        TILE=tile,
        CHANNELS=settings.channels,
        ROWS=settings.rows,
        STAGES=settings.n_stages,
        APART=settings.is_apart,
        GROUPED=len(scale) > 1,
        num_warps=settings.warps,
        **waits,
    )
    return added_up(parts, out)


def _split(x: Tensor, *, tile: int) -> tuple[Tensor, Tensor]:
    """x as digits, (2 · m, k or a few more) of int8, and the units of its groups, (groups, m) of fp32."""
    m, k = x.shape
    n_tiles = triton.cdiv(k, tile)
    digits = torch.empty((2 * m, 16 * triton.cdiv(k, 16)), dtype=torch.int8, device=x.device)
    unit = torch.empty((n_tiles, m), dtype=torch.float32, device=x.device)
    launch(
        quantized_matmul_split,
        (m, triton.cdiv(n_tiles, GROUPS)),
        x,
        digits,
        unit,
        m,
        k,
        x.stride(0),
        digits.stride(0),
        TILE=tile,
        GROUPS=GROUPS,
        num_warps=4,
        **dependent(),
    )
    return digits, unit


def _by_words(
    x: Tensor,
    words: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    settings: Direct | Shared,
    *,
    n: int,
    group: int,
    per_scale: int,
) -> Tensor:
    """Any rows of x, and a weight of (n, k) in bytes or four of them a word, or (tiles, n, 16) in nibbles.

    Of `per_scale` tiles of 128 columns, or groups of fewer, a scale is one.
    """
    m, k = x.shape
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    parts = parts_of(out, settings.n_splits)
    if isinstance(settings, Direct):
        kernel = quantized_matmul_direct
        more = {"CHANNELS": settings.channels, "DEPTH": settings.depth}
        if settings.channels == 32:
            # As `settings` reckons what is resident; with zeros it would be 140.
            more["maxnreg"] = 128
    else:
        kernel, more = quantized_matmul_shared, {"STAGES": settings.n_stages}
    n_programs = triton.cdiv(n, channels_of(settings))
    launch(
        kernel,
        (n_programs, settings.n_splits, triton.cdiv(m, settings.rows)),
        x,
        words,
        scale,
        zero,
        parts,
        m,
        n,
        k,
        triton.cdiv(k, TILE.value),
        len(scale),
        per_scale,
        x.stride(0),
        words.stride(0),
        POWERS[x.dtype],
        NIBBLES=words.dim() == 3,
        GROUP=group,
        HAS_ZEROS=zero is not None,
        ROWS=settings.rows,
        WARPS=settings.warps,
        num_warps=settings.warps,
        num_stages=1,
        **more,
    )
    return added_up(parts, out)
