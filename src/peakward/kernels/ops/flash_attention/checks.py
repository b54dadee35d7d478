"""Checks of the public functions' arguments.

The operators check devices when they run, because torch.compile cannot look into Triton.
"""

import torch
from torch import Tensor

from peakward.kernels.ops.launchable import require_floats

OP = "flash_attention"
HEAD_DIMS = range(16, 257)


def require_dense(q: Tensor, k: Tensor, v: Tensor) -> None:
    """
    Raises:
        ValueError: no (batch, heads, rows, head_dim) that belong together.
    """
    _require_rank(4, "(batch, heads, rows, head_dim)", q=q, k=k, v=v)
    _require_alike(q, k, v)
    if q.shape[0] != k.shape[0]:
        raise ValueError(f"{OP}: expected k of q's batch of {q.shape[0]}, got {k.shape[0]}")


def require_packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
) -> None:
    """
    Raises:
        ValueError: no (tokens, heads, head_dim) that belong together, or no starts of sequences.
    """
    _require_rank(3, "(tokens, heads, head_dim)", q=q, k=k, v=v)
    _require_alike(q, k, v)
    for name, starts in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        if starts.dtype != torch.int32 or starts.dim() != 1 or not starts.is_contiguous():
            raise ValueError(
                f"{OP}: expected {name} contiguous (batch + 1,) of int32, got "
                f"{tuple(starts.shape)} of {starts.dtype} with strides {starts.stride()}"
            )
    if cu_seqlens_q.shape != cu_seqlens_k.shape or cu_seqlens_q.shape[0] == 0:
        raise ValueError(
            f"{OP}: expected cu_seqlens_q and cu_seqlens_k of one batch + 1, got "
            f"{cu_seqlens_q.shape[0]} and {cu_seqlens_k.shape[0]}"
        )
    for name, length in (("max_seqlen_q", max_seqlen_q), ("max_seqlen_k", max_seqlen_k)):
        if length < 0:
            raise ValueError(f"{OP}: expected {name} of at least 0, got {length}")


def require_rule(*, causal: bool, window: int | None, scale: float | None) -> None:
    """
    Raises:
        ValueError: a window without causality or of no key; a scale that is not above 0.
    """
    if window is not None and not causal:
        raise ValueError(f"{OP}: expected causal=True with a window, got causal=False")
    if window is not None and window < 1:
        raise ValueError(f"{OP}: expected a window of at least 1, got {window}")
    if scale is not None and not scale > 0:
        raise ValueError(f"{OP}: expected a scale above 0, got {scale}")


def require_slopes(slopes: Tensor | None, q: Tensor) -> None:
    """
    Raises:
        ValueError: slopes that are not one fp32 a head, without a gradient.
    """
    if slopes is None:
        return
    if slopes.shape != q.shape[1:2]:
        raise ValueError(f"{OP}: expected alibi_slopes of (heads,), got {tuple(slopes.shape)}")
    if slopes.dtype != torch.float32 or not slopes.is_contiguous():
        raise ValueError(
            f"{OP}: expected alibi_slopes contiguous in float32, got {slopes.dtype} with strides "
            f"{slopes.stride()}"
        )
    if slopes.requires_grad:
        raise ValueError(f"{OP}: expected alibi_slopes that need no gradient; detach them")


def _require_rank(rank: int, meaning: str, **tensors: Tensor) -> None:
    for name, each in tensors.items():
        if each.dim() != rank:
            raise ValueError(f"{OP}: expected {name} of {meaning}, got {tuple(each.shape)}")


def _require_alike(q: Tensor, k: Tensor, v: Tensor) -> None:
    require_floats(OP, q=q)
    for name, each in (("k", k), ("v", v)):
        if each.dtype != q.dtype:
            raise ValueError(f"{OP}: expected {name} in q's {q.dtype}, got {each.dtype}")
    if not HEAD_DIMS[0] <= q.shape[-1] <= HEAD_DIMS[-1]:
        raise ValueError(
            f"{OP}: expected head_dim from {HEAD_DIMS[0]} to {HEAD_DIMS[-1]}, got {q.shape[-1]}"
        )
    if k.shape != v.shape or k.shape[-1] != q.shape[-1]:
        raise ValueError(
            f"{OP}: expected k and v of one shape and q's head_dim, got {tuple(q.shape)}, "
            f"{tuple(k.shape)} and {tuple(v.shape)}"
        )
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(
            f"{OP}: expected heads that kv_heads divide, got {q.shape[1]} and {k.shape[1]}"
        )
    for name, each in (("q", q), ("k", k), ("v", v)):
        if each.stride(-1) != 1:
            raise ValueError(
                f"{OP}: expected {name} with a contiguous last dimension, got strides "
                f"{each.stride()}; make it contiguous"
            )
