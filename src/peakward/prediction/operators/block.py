"""One block: attention and feed-forward, each behind a norm and added to the residual stream."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from peakward.prediction.operators import attention, experts, feed_forward, norms
from peakward.prediction.operators.attention import Mixed
from peakward.prediction.operators.experts import SavedExperts
from peakward.prediction.operators.feed_forward import SavedFeedForward
from peakward.prediction.operators.linear import BLOCK, SavedLinear, layers, products
from peakward.prediction.operators.norms import Normed, SavedNorm
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import Tape
from peakward.prediction.operators.writer import Value, Writer
from peakward.records.case import Checkpointing


class Attention(NamedTuple):
    """The functions between a block's first two products."""

    forward: Callable[[Any, Plan, Value], Mixed]
    backward: Callable[[Any, Plan, Any, Value], Value]


_EAGER = Attention(attention.forward, attention.backward)


class SavedHalf(NamedTuple):
    """The tensors that autograd keeps of each part before the feed-forward network."""

    attention_norm: SavedNorm
    qkv: SavedLinear
    attention: Any
    """For its backward function."""
    out: SavedLinear
    ff_norm: SavedNorm


class SavedBlock(NamedTuple):
    """The tensors that autograd keeps of all parts."""

    until: SavedHalf
    ff: SavedFeedForward | SavedExperts


def forward(
    on: Writer, plan: Plan, x: Value, attends: Attention = _EAGER
) -> tuple[SavedBlock, Value]:
    """The residual stream → the same behind the block. x is there to the end: its caller has it."""
    until, normed = _until_feed_forward(on, plan, x, attends)
    run = feed_forward.forward if plan.shape.n_experts == 1 else experts.forward
    ff, y = run(on, plan, normed.y)
    with on.module(BLOCK):
        behind = on.pointwise("add", normed.total, y)
    on.use(x)
    if plan.norm is not None:
        on.use(normed.y)  # A local of the block.
    return SavedBlock(until, ff), behind


def forward_until_saved(on: Writer, plan: Plan, x: Value) -> SavedBlock:
    """As far as torch recomputes the last block of a run: until the last tensor that the backward
    pass needs is there, which is before the product of the last layer unless it is of fp8, and
    before a mixture weighs its experts' results."""
    until, normed = _until_feed_forward(on, plan, x, _EAGER)
    run = feed_forward.until_saved if plan.shape.n_experts == 1 else experts.until_saved
    ff = run(on, plan, normed.y)
    on.use(normed.total, x)
    return SavedBlock(until, ff)


def backward(
    on: Writer, plan: Plan, saved: SavedBlock, gradient: Value, attends: Attention = _EAGER
) -> Value:
    """Gradient of the residual stream behind the block → before it, added to in place
    (`InputBuffer::accumulate`); also of all parameters."""
    parts, linear = saved.until, products(plan)
    x = _feed_forward_backward(on, plan, saved.ff, gradient)
    with on.module(f"{BLOCK}.ff_norm"):
        if plan.sums_in_norm:
            gradient = norms.backward(on, plan, parts.ff_norm, x, gradient)
        else:
            _norm_backward(on, plan, parts.ff_norm, x, gradient)
    narrow = _narrow(on, gradient, plan.compute)
    mixed = linear.backward(on, parts.out, narrow, plan.compute)
    with on.module(f"{BLOCK}.attention"):
        packed = attends.backward(on, plan, parts.attention, mixed)
    x = linear.backward(on, parts.qkv, packed, plan.stored)
    with on.module(f"{BLOCK}.attention_norm"):
        _norm_backward(on, plan, parts.attention_norm, x, gradient)
    return gradient


def _until_feed_forward(
    on: Writer, plan: Plan, x: Value, attends: Attention
) -> tuple[SavedHalf, Normed]:
    """The saved tensors, and the normalised residual stream between the two halves."""
    layer, linear = layers(plan), products(plan)
    with on.module(f"{BLOCK}.attention_norm"):
        first = norms.forward(on, plan, x)
    qkv, packed = linear.forward(on, layer.qkv, first.y)
    with on.module(f"{BLOCK}.attention"):
        mixed = attends.forward(on, plan, packed)
    out, y = linear.forward(on, layer.out, mixed.result)
    on.use(first.y, *mixed.held)
    between = [x, y]
    if not plan.sums_in_norm:
        with on.module(BLOCK):
            between = [on.pointwise("add", x, y)]
    with on.module(f"{BLOCK}.ff_norm"):
        second = norms.forward(on, plan, *between)
    if plan.norm is not None and not plan.sums_in_norm:
        on.use(y)  # An argument of what adds and normalises.
    return SavedHalf(first.saved, qkv, mixed.saved, out, second.saved), second


def _feed_forward_backward(
    on: Writer, plan: Plan, saved: SavedFeedForward | SavedExperts, gradient: Value
) -> Value:
    if isinstance(saved, SavedFeedForward):
        narrow = _narrow(on, gradient, plan.compute)
        return feed_forward.backward(on, plan, saved, narrow)
    narrow = _narrow(on, gradient, experts.result(plan).dtype)
    return experts.backward(on, plan, saved, narrow)


def _norm_backward(on: Writer, plan: Plan, saved: SavedNorm, x: Value, gradient: Value) -> None:
    """And the sum with the gradient that went past, in place and in its node's name."""
    made = norms.backward(on, plan, saved, x)
    on.timed("add", gradient, made, output=plan.hidden)
    on.use(made, gradient)


def _narrow(on: Writer, gradient: Value, dtype: str) -> Value:
    """The gradient of what was added to the residual stream, in its type."""
    with on.module(BLOCK):
        return on.cast(gradient, dtype)


# The part of the forward pass that runs again in the backward one (`lab/levers/compilation.py`).
#
# Chen et al. 2016, "Training deep nets with sublinear memory cost".

KEPT_BY_SELECTIVE = frozenset(
    {
        "mm",
        "addmm",
        "bmm",
        "_scaled_mm",
        "_grouped_mm",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "peakward.flash_attention",
    }
)
"""Whose results are kept, so that they do not run again (`SAVED_BY_SELECTIVE` of the lever)."""


def recomputed(tape: Tape, plan: Plan, checkpointing: Checkpointing) -> None:
    """Every block but the last of a run whole, and the last as far as torch needs it."""
    runs = n_runs(plan.shape.n_layers, checkpointing)
    kept = KEPT_BY_SELECTIVE if checkpointing == "selective" else frozenset()
    on, x = Writer(tape), Value(plan.hidden)
    if runs:
        with tape.without(kept):
            for _ in on.times(plan.shape.n_layers - runs):
                forward(on, plan, x)
            for _ in on.times(runs):
                forward_until_saved(on, plan, x)


def n_runs(n_layers: int, checkpointing: Checkpointing) -> int:
    """Runs of blocks that are recomputed as one."""
    return 0 if checkpointing == "none" else len(runs(n_layers, checkpointing))


def runs(n_layers: int, checkpointing: Checkpointing) -> list[int]:
    """How many blocks each run has, recomputed or not."""
    length = math.ceil(math.sqrt(n_layers)) if checkpointing == "sqrt" else 1
    return [min(length, n_layers - start) for start in range(0, n_layers, length)]
