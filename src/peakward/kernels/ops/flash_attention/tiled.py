"""Flash attention in plain torch, which never holds the whole scores (Dao 2023, algorithms 1 and 2).

Forward, for each block of queries: go through the keys a block at a time, with the largest score so
far, the sum of exponentials under it and the sum of values weighted by them. A larger score rescales
both sums. One number a row is kept for the backward pass: the logarithm of its sum.

Backward, for each block of keys: compute the weights P = exp(S - lse) again; with dP = dO·Vᵀ and delta
= rowsum(dO∘O) - dlse, the gradient of the scores is dS = P∘(dP - delta).

It is slow, and works in any type; it shows what the kernels compute.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from peakward.kernels.ops.flash_attention.rule import Rule

BLOCK = 64


def attention(
    q: Tensor, k: Tensor, v: Tensor, slopes: Tensor | None, rule: Rule
) -> tuple[Tensor, Tensor]:
    """(batch, heads, q_len, head_dim) and the rows' log-sum-exp of (batch, heads, q_len).

    Args:
        q: (batch, heads, q_len, head_dim).
        k, v: (batch, kv_heads, k_len, head_dim); kv_heads divides heads.
        slopes: (heads,), of ALiBi.

    A row that sees no key is 0, and its log-sum-exp minus infinity.
    """
    out, lse = _Attention.apply(q, k, v, slopes, rule)
    return out, lse


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, slopes: Tensor | None, rule: Rule
    ) -> tuple[Tensor, Tensor]:
        out, lse = forward(q, k, v, slopes, rule)
        ctx.save_for_backward(q, k, v, out, lse, slopes)
        ctx.rule = rule
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor, dlse: Tensor) -> tuple[Any, ...]:
        q, k, v, out, lse, slopes = ctx.saved_tensors
        return *backward(dout, dlse, q, k, v, out, lse, slopes, ctx.rule), None, None


def forward(
    q: Tensor, k: Tensor, v: Tensor, slopes: Tensor | None, rule: Rule
) -> tuple[Tensor, Tensor]:
    """Algorithm 1: out and log-sum-exp."""
    out = torch.zeros_like(q)
    lse = q.new_full(q.shape[:3], -math.inf)
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    for rows in _blocks(q.shape[2]):
        sums = torch.zeros_like(q[:, :, rows])
        most, total = lse[:, :, rows].clone(), torch.zeros_like(lse[:, :, rows])
        for columns in _blocks(k.shape[2]):
            scores = _scores(q, k, slopes, rule, rows, columns)
            now = torch.maximum(most, scores.amax(-1))
            # Of a row that has seen no key yet: exp(-inf - 0), not exp(-inf + inf).
            base = now.masked_fill(now == -math.inf, 0.0)
            weights = (scores - base[..., None]).exp()
            shrink = (most - base).exp()
            total = total * shrink + weights.sum(-1)
            sums = sums * shrink[..., None] + weights @ v[:, :, columns]
            most = now
        out[:, :, rows] = sums / total.masked_fill(total == 0, 1.0)[..., None]
        lse[:, :, rows] = most + total.log()
    return out, lse


def backward(
    dout: Tensor,
    dlse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    slopes: Tensor | None,
    rule: Rule,
) -> tuple[Tensor, Tensor, Tensor]:
    """Algorithm 2: dq, dk, dv."""
    batch, heads, q_len, _ = q.shape
    kv_shape = (batch, k.shape[1], heads // k.shape[1], *k.shape[2:])
    k, v = (each.repeat_interleave(kv_shape[2], 1) for each in (k, v))
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    delta = (dout * out).sum(-1) - dlse
    for columns in _blocks(k.shape[2]):
        for rows in _blocks(q_len):
            scores = _scores(q, k, slopes, rule, rows, columns)
            weights = (scores - lse[:, :, rows, None]).exp().masked_fill(scores == -math.inf, 0.0)
            dweights = dout[:, :, rows] @ v[:, :, columns].mT
            dscores = weights * (dweights - delta[:, :, rows, None])
            dv[:, :, columns] += weights.mT @ dout[:, :, rows]
            dk[:, :, columns] += rule.scale * dscores.mT @ q[:, :, rows]
            dq[:, :, rows] += rule.scale * dscores @ k[:, :, columns]
    return dq, dk.view(kv_shape).sum(2), dv.view(kv_shape).sum(2)


def _blocks(length: int) -> Iterator[slice]:
    return (slice(start, min(start + BLOCK, length)) for start in range(0, length, BLOCK))


def _scores(
    q: Tensor, k: Tensor, slopes: Tensor | None, rule: Rule, rows: slice, columns: slice
) -> Tensor:
    """scale·q·kᵀ - slope·|distance| of a block, minus infinity where a query does not see a key."""
    scores = rule.scale * (q[:, :, rows] @ k[:, :, columns].mT)
    row = torch.arange(rows.start, rows.stop, device=q.device)
    column = torch.arange(columns.start, columns.stop, device=q.device)
    distance = (row + k.shape[2] - q.shape[2])[:, None] - column
    if slopes is not None:
        scores = scores - slopes.to(q.dtype)[:, None, None] * distance.abs()
    if rule.causal:
        scores = scores.masked_fill(distance < 0, -math.inf)
    if rule.window is not None:
        scores = scores.masked_fill(distance >= rule.window, -math.inf)
    return scores
