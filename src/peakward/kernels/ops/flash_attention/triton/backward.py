"""The backward pass, which makes the weights again from the scores and the saved logarithm of sums.

With P the weights, dP = dOut·Vᵀ and delta = rowsum(dOut∘Out) - dlse, dS = P∘(dP - delta), and
dV = Pᵀ·dOut, dK = scale·dSᵀ·Q, dQ = scale·dS·K (Dao 2023, algorithm 2). A program holds a block of
keys and goes through the queries that see it. It works on transposed scores, so that Pᵀ and dSᵀ feed
their products from registers. dQ has a pass of its own over blocks of queries, which makes scores and
dP again: seven products where adding what each block of keys owes to dQ, by atomics, has five. On an
H100 it is the faster way all the same (bf16, 4,096 causal: 387 TFLOP/s of the five for 323 at head
dimension 128, 353 for 265 at 96, 320 for 264 at 80, 343 for 332 at 64), and its sums have one order.
"""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from peakward.kernels.ops.flash_attention.rule import Packing, Rule
from peakward.kernels.ops.flash_attention.triton.by_keys import attention_by_keys
from peakward.kernels.ops.flash_attention.triton.by_queries import attention_by_queries
from peakward.kernels.ops.flash_attention.triton.delta import delta_of
from peakward.kernels.ops.flash_attention.triton.problem import (
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
from peakward.kernels.ops.flash_attention.triton.settings import (
    BY_KEYS,
    BY_QUERIES,
    BackwardSettings,
    Blocks,
    backward_settings_for,
)
from peakward.kernels.ops.recording import launch
from peakward.kernels.ops.tuning import tuned


class _Call(NamedTuple):
    """The arguments of both passes."""

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
    settings: BackwardSettings | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv), each laid out as what it is the gradient of.

    Args:
        dout: as `out`, the last dimension contiguous.
        dlse: as `lse`, contiguous; None where it has no gradient.
        out, lse: what `forward` gave.
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
    call = call if settings else _tuned(call)
    dk, dv = _by_keys(call)
    (dq,) = _by_queries(call)
    return dq, dk, dv


def _tuned(call: _Call) -> _Call:
    device, is_narrow = call.q.device, call.q.element_size() == 2

    def kind() -> str:
        return call.problem.kind(call.q, call.rule)

    by_keys = tuned(
        "flash_attention backward by keys",
        kind,
        device,
        rule=call.settings.by_keys,
        others=lambda: BY_KEYS if is_narrow else (),
        start=lambda each: _by_keys(call._replace(settings=call.settings._replace(by_keys=each))),
    )
    by_queries = tuned(
        "flash_attention backward by queries",
        kind,
        device,
        rule=call.settings.by_queries,
        others=lambda: BY_QUERIES if is_narrow else (),
        start=lambda each: _by_queries(
            call._replace(settings=call.settings._replace(by_queries=each))
        ),
    )
    return call._replace(settings=call.settings._replace(by_keys=by_keys, by_queries=by_queries))


def _by_keys(call: _Call) -> tuple[Tensor, Tensor]:
    """dk and dv."""
    dk, dv = torch.empty_like(call.k), torch.empty_like(call.v)
    _launch_by_keys(call, dk, dv)
    return dk, dv


def _by_queries(call: _Call) -> tuple[Tensor]:
    """dq."""
    dq = torch.empty_like(call.q)
    _launch_by_queries(call, dq)
    return (dq,)


def _launch_by_keys(call: _Call, dk: Tensor, dv: Tensor) -> None:
    problem, blocks = call.problem, call.settings.by_keys
    n_programs = triton.cdiv(problem.k_len, blocks.keys) * problem.n_batches * problem.n_kv_heads
    if n_programs == 0:
        return
    launch(
        attention_by_keys,
        (n_programs,),
        *halves(call.q, blocks.queries, described=call.described),
        *halves(call.k, blocks.keys, described=call.described),
        *halves(call.v, blocks.keys, described=call.described),
        *halves(call.dout, blocks.queries, described=call.described),
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
        strides_of(dk),
        strides_of(dv),
        row_strides(problem, call.packing),
        problem.n_kv_heads,
        problem.n_batches,
        problem.q_len,
        problem.k_len,
        _section(call, problem.q_len * problem.group),
        call.rule.scale,
        **_options(call, blocks),
    )


def _launch_by_queries(call: _Call, dq: Tensor) -> None:
    problem, blocks = call.problem, call.settings.by_queries
    n_programs = triton.cdiv(problem.q_len, blocks.queries) * problem.n_batches * problem.n_heads
    if n_programs == 0:
        return
    launch(
        attention_by_queries,
        (n_programs,),
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
    """The constants that are compiled in."""
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
