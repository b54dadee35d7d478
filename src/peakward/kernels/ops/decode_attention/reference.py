"""Attention of a few new tokens to a long cache, as its definition has it, and how caches are stored."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The stored value of a position's largest element, for each type of cache in bytes."""
GROUP = 32
"""Elements of half a byte that share a step, where this divides head_dim; else a head's all share one."""
LARGEST_STEP = 15


def decode_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    lengths: Tensor | None = None,
    window: int | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """softmax(q·kᵀ·scale)·v over the keys that each query may attend to.

    Flash-decoding (Dao et al. 2023) computes the same in pieces: over any split of the keys, with
    oₛ and Lₛ the output and the log-sum-exp of piece s alone, L = log Σ exp Lₛ and
    o = Σ exp(Lₛ - L)·oₛ.

    Args:
        q: (batch, heads, n_queries, head_dim): the last n_queries tokens of each sequence.
        k, v: (batch, kv_heads, positions, head_dim); kv_heads divides heads, and
            heads / kv_heads neighbouring heads share one.
        lengths: (batch,) of int: the positions held of each sequence, its queries' own included;
            what lies behind them is never read. None: all are full.
        window: a query attends to the last `window` positions up to its own; None: to all.
        scale: of the scores; None: 1/√head_dim.

    Returns:
        The output, (batch, heads, n_queries, head_dim) in q's dtype, and the log-sum-exp of the
        scaled scores, (batch, heads, n_queries) in at least fp32. A query with nothing to attend to
        (a token before its sequence began) has zeros and minus infinity.
    """
    batch, heads, n_queries, head_dim = q.shape
    kv_heads, positions = k.shape[1:3]
    wide = torch.promote_types(q.dtype, torch.float32)
    position = torch.arange(positions, device=q.device)
    ends = torch.full((batch,), positions, device=q.device) if lengths is None else lengths
    held = position < ends[:, None]
    own = ends[:, None] - n_queries + torch.arange(n_queries, device=q.device)
    allowed = position <= own[..., None]
    if window is not None:
        allowed = allowed & (position > own[..., None] - window)
    # (batch, kv_heads, heads that share one, n_queries, positions) from here on.
    q = q.view(batch, kv_heads, heads // kv_heads, n_queries, head_dim)
    k, v = (each.masked_fill(~held[:, None, :, None], 0)[:, :, None] for each in (k, v))
    scores = (q @ k.mT).to(wide) * (1 / math.sqrt(head_dim) if scale is None else scale)
    scores = scores.masked_fill(~allowed[:, None, None], -math.inf)
    lse = scores.logsumexp(-1)
    weights = (scores - lse.masked_fill(lse == -math.inf, 0)[..., None]).exp()
    out = weights.to(v.dtype) @ v
    return out.view(batch, heads, n_queries, head_dim), lse.view(batch, heads, n_queries)


def gathered(pages: Tensor, block_table: Tensor) -> Tensor:
    """A paged cache as a contiguous one.

    Args:
        pages: (n_pages, page_size, kv_heads, ...): of keys, values or their scales.
        block_table: (batch, max_pages) of int: which page holds positions i·page_size and on.

    Returns:
        (batch, kv_heads, max_pages·page_size, ...).
    """
    return pages[block_table.long()].flatten(1, 2).transpose(1, 2)


class Layout(NamedTuple):
    """The elements of a key or value of a head as it is stored, and the shape and type of what turns them
    back."""

    width: int
    scale: tuple[int, ...]
    scale_dtype: torch.dtype


def layout(head_dim: int, dtype: torch.dtype) -> Layout:
    """How a cache of that type is laid out: uint8 has half a byte an element, of an even head_dim."""
    if dtype != torch.uint8:
        return Layout(head_dim, (), torch.float32)
    return Layout(head_dim // 2, (head_dim // group_size(head_dim), 2), torch.bfloat16)


def quantized(cache: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Each position of each head by its own largest element; in uint8 as `packed`.

    Args:
        cache: (..., head_dim): of either layout.
        dtype: a key of `LARGEST`, or uint8.

    Returns:
        The cache in that dtype, and its scales (...) of fp32: an element is what is stored times
        the scale.
    """
    if dtype == torch.uint8:
        return packed(cache)
    largest = LARGEST[dtype]
    # By a product: of a division by a number torch makes that on a GPU, and a division on a CPU.
    scale = cache.abs().amax(-1).float() * (1 / largest)
    steps = cache.float() / scale.masked_fill(scale == 0, 1)[..., None]
    if not dtype.is_floating_point:
        steps = steps.round()
    return steps.clamp(-largest, largest).to(dtype), scale


def group_size(head_dim: int) -> int:
    """The elements of half a byte that share a step."""
    return GROUP if head_dim % GROUP == 0 else head_dim


def packed(cache: Tensor) -> tuple[Tensor, Tensor]:
    """Half a byte an element: each as one of 16 steps from its group's least element to its largest.

    Step and least element are kept in bf16, whose range is that of the elements, and elements are rounded to
    what these two give. With groups of 32 an element takes 5 bits.

    Args:
        cache: (..., head_dim), which is even: of either layout.

    Returns:
        Bytes (..., head_dim / 2) of two elements each, the first in the lower half; and the step and the
        least element of each group, (..., groups, 2) of bf16.
    """
    wide = torch.promote_types(cache.dtype, torch.float32)
    groups = cache.to(wide).unflatten(-1, (-1, group_size(cache.shape[-1])))
    least, most = groups.aminmax(dim=-1)
    kept = torch.stack(((most - least) * (1 / LARGEST_STEP), least), dim=-1).bfloat16()
    step, least = kept.to(wide).unbind(-1)
    steps = (groups - least[..., None]) / step.masked_fill(step == 0, 1)[..., None]
    pairs = steps.round().clamp(0, LARGEST_STEP).to(torch.uint8).flatten(-2).unflatten(-1, (-1, 2))
    return pairs[..., 0] | (pairs[..., 1] << 4), kept


def unpacked(stored: Tensor, kept: Tensor, dtype: torch.dtype) -> Tensor:
    """The elements that `packed` stored, in `dtype`."""
    wide = torch.promote_types(dtype, torch.float32)
    steps = torch.stack((stored & LARGEST_STEP, stored >> 4), dim=-1).flatten(-2).to(wide)
    step, least = kept.to(wide).unbind(-1)
    groups = steps.unflatten(-1, (step.shape[-1], -1))
    return (groups * step[..., None] + least[..., None]).flatten(-2).to(dtype)


def dequantized(stored: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers that `quantized` stored, in `dtype`."""
    if stored.dtype == torch.uint8:
        return unpacked(stored, scale, dtype)
    wide = torch.promote_types(dtype, torch.float32)
    return (stored.to(wide) * scale.to(wide)[..., None]).to(dtype)
