"""Attention in fp64, and what the kernels are held against it with."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from peakward.kernels.ops.flash_attention.rule import Rule


class Case(NamedTuple):
    """What one call is given."""

    n_batches: int = 1
    n_heads: int = 1
    n_kv_heads: int = 1
    q_len: int = 17
    k_len: int = 17
    head_dim: int = 16
    causal: bool = True
    window: int | None = None
    alibi: bool = False

    @property
    def rule(self) -> Rule:
        return Rule(self.causal, self.window, self.head_dim**-0.5)


class Drawn(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor
    dlse: Tensor
    slopes: Tensor | None


def draw(case: Case, dtype: torch.dtype, seed: int = 0) -> Drawn:
    """Of (batch, heads, rows, head_dim), laid out as (batch, rows, heads, head_dim) as a decoder's."""
    torch.manual_seed(seed)

    def tensor(heads: int, rows: int) -> Tensor:
        made = torch.randn(case.n_batches, rows, heads, case.head_dim)
        return made.to(dtype).transpose(1, 2)

    return Drawn(
        q=tensor(case.n_heads, case.q_len),
        k=tensor(case.n_kv_heads, case.k_len),
        v=tensor(case.n_kv_heads, case.k_len),
        dout=tensor(case.n_heads, case.q_len),
        dlse=torch.randn(case.n_batches, case.n_heads, case.q_len),
        slopes=torch.rand(case.n_heads) if case.alibi else None,
    )


def distances(case: Case) -> Tensor:
    """(q_len, k_len): how far before a query a key is."""
    row = torch.arange(case.q_len)[:, None] + case.k_len - case.q_len
    return row - torch.arange(case.k_len)


def seen(case: Case) -> Tensor:
    """(q_len, k_len): where a query sees a key."""
    distance = distances(case)
    allowed = torch.ones_like(distance, dtype=torch.bool)
    if case.causal:
        allowed &= distance >= 0
    if case.window is not None:
        allowed &= distance < case.window
    return allowed


def by_definition(
    q: Tensor, k: Tensor, v: Tensor, slopes: Tensor | None, case: Case
) -> tuple[Tensor, Tensor]:
    """out and lse in the type of the inputs, rows without a key as agreed."""
    group = case.n_heads // case.n_kv_heads
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = case.rule.scale * (q @ k.mT)
    if slopes is not None:
        scores = scores - slopes.to(q.dtype)[:, None, None] * distances(case).abs()
    scores = scores.masked_fill(~seen(case), -math.inf)
    lse = scores.logsumexp(-1)
    weights = (scores - lse[..., None]).exp().masked_fill(~seen(case), 0.0)
    return weights @ v, lse


class Results(NamedTuple):
    out: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor


def exact(drawn: Drawn, case: Case, *, with_dlse: bool = False) -> tuple[Results, Tensor]:
    """In fp64: the results, and lse."""
    q, k, v = (each.double().requires_grad_() for each in drawn[:3])
    out, lse = by_definition(q, k, v, drawn.slopes, case)
    loss = (out * drawn.dout).sum()
    if with_dlse:
        loss = loss + (lse.masked_fill(lse == -math.inf, 0.0) * drawn.dlse).sum()
    gradients = torch.autograd.grad(loss, (q, k, v))
    return Results(out.detach(), *gradients), lse.detach()


def cancelling(drawn: Drawn, case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """What dq and dk would be if no term cancelled another, in fp64: of dout·v and dout·out, whose
    difference they are made of, the sums of all products' magnitudes, and so on with q and k. And dv with
    each weight times the score and the log-sum-exp whose difference is its exponent: what an error relative
    to these becomes."""
    group = case.n_heads // case.n_kv_heads
    q, k, v, dout = (each.double() for each in drawn[:4])
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    apart = case._replace(n_kv_heads=case.n_heads)
    eye = torch.eye(case.k_len, dtype=torch.float64).expand(*k.shape[:2], -1, -1)
    weights, lse = by_definition(q, k, eye, drawn.slopes, apart)
    terms = dout.abs() @ v.abs().mT + (dout.abs() * (weights @ v).abs()).sum(-1, keepdim=True)
    dscores = case.rule.scale * weights * terms
    dk = (dscores.mT @ q.abs()).unflatten(1, (case.n_kv_heads, group)).sum(2)
    exponents = case.rule.scale * (q @ k.mT).abs() + lse.abs().nan_to_num(posinf=0.0)[..., None]
    dv = ((weights * exponents).mT @ dout.abs()).unflatten(1, (case.n_kv_heads, group)).sum(2)
    return dscores @ k.abs(), dk, dv


def torchs(drawn: Drawn, case: Case) -> Results:
    """By torch's own kernel in the same type; rows that see no key, which it has no word for, are 0."""
    q, k, v = (each.detach().clone().requires_grad_() for each in drawn[:3])
    mask = torch.zeros((case.n_heads, case.q_len, case.k_len))
    if drawn.slopes is not None:
        mask -= drawn.slopes[:, None, None] * distances(case).abs()
    some = seen(case).any(-1)[:, None]
    mask = mask.masked_fill(~seen(case) & some, -math.inf).to(q.dtype)
    group = case.n_heads // case.n_kv_heads
    out = some * torch.nn.functional.scaled_dot_product_attention(
        q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), attn_mask=mask[None]
    )
    return Results(out.detach(), *torch.autograd.grad(out, (q, k, v), drawn.dout))
