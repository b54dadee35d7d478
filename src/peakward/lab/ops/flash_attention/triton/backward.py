"""The backward pass, which makes the weights again from the scores and the saved logarithm of sums.

With P the weights, dP = dOut·Vᵀ and delta = rowsum(dOut∘Out) - dlse, dS = P∘(dP - delta), and
dV = Pᵀ·dOut, dK = scale·dSᵀ·Q, dQ = scale·dS·K (Dao 2023, algorithm 2). A program holds a block of
keys and goes through the queries that see it. It works on transposed scores, so that Pᵀ and dSᵀ feed
their products from registers. What it owes dQ is added in fp32 by atomics, in an order that changes
from run to run: five products. Where the result must not, dQ has a pass of its own over blocks of
queries, which makes scores and dP again: seven.
"""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from peakward.lab.ops.flash_attention.rule import Packing, Rule
from peakward.lab.ops.flash_attention.triton.by_keys import attention_by_keys
from peakward.lab.ops.flash_attention.triton.by_queries import attention_by_queries
from peakward.lab.ops.flash_attention.triton.delta import delta_of
from peakward.lab.ops.flash_attention.triton.problem import (
    Problem,
    capability,
    describable,
    halves,
    parts,
    problem_of,
    row_strides,
    section,
    starts_of,
    strides_of,
)
from peakward.lab.ops.flash_attention.triton.settings import (
    BackwardSettings,
    Blocks,
    backward_settings_for,
)


class _Call(NamedTuple):
    """What both passes are handed."""

    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor
    lse: Tensor
    delta: Tensor
    slopes: Tensor | None
    rule: Rule
    packing: Packing | None
    problem: Problem
    settings: BackwardSettings
    described: bool


def backward(
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    slopes: Tensor | None,
    rule: Rule,
    packing: Packing | None = None,
    *,
    deterministic: bool,
    settings: BackwardSettings | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv), each laid out as what it is the gradient of.

    Args:
        dout: as `out`, the last dimension contiguous.
        dlse: as `lse`, contiguous; None where it has no gradient.
        out, lse: what `forward` gave.
        deterministic: see the module.
    """
    problem = problem_of(q, k, packing)
    chosen = settings or backward_settings_for(problem.head_dim, q.dtype, capability())
    call = _Call(
        q=q,
        k=k,
        v=v,
        dout=dout,
        lse=lse,
        delta=delta_of(problem, out, dout, dlse, packing),
        slopes=slopes,
        rule=rule,
        packing=packing,
        problem=problem,
        settings=chosen,
        described=chosen.descriptors and packing is None and describable(q, k, v, dout),
    )
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    if deterministic:
        _launch_by_keys(call, dk, dv, None)
        _launch_by_queries(call, dq)
        return dq, dk, dv
    sums = _sums_like(problem, q, packing, chosen.by_keys.queries)
    _launch_by_keys(call, dk, dv, sums)
    seen = sums[..., : problem.q_tokens, : problem.head_dim]
    torch.mul(seen if packing is None else seen.transpose(0, 1), rule.scale, out=dq)
    return dq, dk, dv


def _sums_like(problem: Problem, q: Tensor, packing: Packing | None, multiple: int) -> Tensor:
    """Zeros of fp32 that dq's shares are added to: (batch, heads, rows, width), packed (heads, ...).

    Rows are padded to whole blocks, heads to their two parts: no block has to look where it ends.
    """
    width = sum(parts(problem.head_dim))
    shape: tuple[int, ...] = (problem.n_heads, problem.q_tokens, width)
    if packing is None:
        rows = triton.cdiv(problem.q_len, multiple) * multiple
        shape = (problem.n_batches, problem.n_heads, rows, width)
    return torch.zeros(shape, dtype=torch.float32, device=q.device)


def _launch_by_keys(call: _Call, dk: Tensor, dv: Tensor, sums: Tensor | None) -> None:
    problem, blocks = call.problem, call.settings.by_keys
    n_programs = triton.cdiv(problem.k_len, blocks.keys) * problem.n_batches * problem.n_kv_heads
    if n_programs == 0:
        return
    reduce_descriptors = (
        sums is not None
        and sums.numel() > 0
        and call.packing is None
        and call.settings.reduce_descriptors
    )
    attention_by_keys[(n_programs,)](
        *halves(call.q, blocks.queries, described=call.described),
        *halves(call.k, blocks.keys, described=call.described),
        *halves(call.v, blocks.keys, described=call.described),
        *halves(call.dout, blocks.queries, described=call.described),
        *_shares(problem, sums, blocks.queries, described=reduce_descriptors),
        *halves(dk, blocks.keys, described=False),
        *halves(dv, blocks.keys, described=False),
        call.lse,
        call.delta,
        call.slopes,
        *starts_of(call.packing),
        strides_of(call.q),
        strides_of(call.k),
        strides_of(call.v),
        strides_of(call.dout),
        _strides_of_sums(sums),
        strides_of(dk),
        strides_of(dv),
        row_strides(problem, call.packing),
        problem.n_kv_heads,
        problem.n_batches,
        problem.q_len,
        problem.k_len,
        _section(call, problem.q_len * problem.group),
        call.rule.scale,
        ADD_DQ=sums is not None,
        REDUCE_DESCRIPTORS=reduce_descriptors,
        **_options(call, blocks),
    )


def _launch_by_queries(call: _Call, dq: Tensor) -> None:
    problem, blocks = call.problem, call.settings.by_queries
    n_programs = triton.cdiv(problem.q_len, blocks.queries) * problem.n_batches * problem.n_heads
    if n_programs == 0:
        return
    attention_by_queries[(n_programs,)](
        *halves(call.q, blocks.queries, described=call.described),
        *halves(call.k, blocks.keys, described=call.described),
        *halves(call.v, blocks.keys, described=call.described),
        *halves(call.dout, blocks.queries, described=call.described),
        *halves(dq, blocks.queries, described=False),
        call.lse,
        call.delta,
        call.slopes,
        *starts_of(call.packing),
        strides_of(call.q),
        strides_of(call.k),
        strides_of(call.v),
        strides_of(call.dout),
        strides_of(dq),
        row_strides(problem, call.packing),
        problem.n_heads,
        problem.n_batches,
        problem.q_len,
        problem.k_len,
        _section(call, problem.k_len) * problem.group,
        call.rule.scale,
        **_options(call, blocks),
    )


def _section(call: _Call, rows: int) -> int:
    problem = call.problem
    n_heads = problem.n_batches * problem.n_kv_heads
    return section(rows, problem.head_dim, call.q.element_size(), n_heads=n_heads)


def _options(call: _Call, blocks: Blocks) -> dict[str, Any]:
    """What is compiled in."""
    first, second = parts(call.problem.head_dim)
    return {
        "GROUP": call.problem.group,
        "CAUSAL": call.rule.causal,
        "WINDOW": call.rule.window,
        "QUERIES": blocks.queries,
        "KEYS": blocks.keys,
        "D1": first,
        "D2": second,
        "HEAD_DIM": call.problem.head_dim,
        "PRECISION": call.settings.precision if call.q.dtype == torch.float32 else "tf32",
        "VARLEN": call.packing is not None,
        "DESCRIPTORS": call.described,
        "num_warps": blocks.num_warps,
        "num_stages": blocks.num_stages,
    }


def _shares(
    problem: Problem, sums: Tensor | None, rows: int, *, described: bool
) -> tuple[Any, Any]:
    """Where both parts of dq's shares are added."""
    if sums is None:
        return None, None
    first, second = parts(problem.head_dim)
    rest = sums[..., first:] if second else sums
    if not described:
        return sums, rest
    width = first + second
    n_rows, others = sums.numel() // width, second or first
    return (
        TensorDescriptor(sums, [n_rows, first], [width, 1], [rows, first]),
        TensorDescriptor(rest, [n_rows, others], [width, 1], [rows, others]),
    )


def _strides_of_sums(sums: Tensor | None) -> tuple[int, ...]:
    if sums is None:
        return 0, 0, 0
    strides = sums.stride()[:-1]
    return strides if len(strides) == 3 else (0, *strides)
