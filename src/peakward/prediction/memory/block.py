"""What one block holds, keeps for the backward pass, and holds there."""

from typing import NamedTuple

from peakward.prediction.memory import attention, experts, feed_forward, linear, norms
from peakward.prediction.memory.experts import SavedExperts
from peakward.prediction.memory.feed_forward import SavedFeedForward
from peakward.prediction.memory.fused_attention import SavedFused
from peakward.prediction.memory.linear import SavedLinear
from peakward.prediction.memory.naive_attention import SavedScores
from peakward.prediction.memory.norms import SavedNorm
from peakward.prediction.memory.timeline import Timeline
from peakward.prediction.operators.experts import sums_in_fp32
from peakward.prediction.operators.layers import layers
from peakward.prediction.operators.plan import Plan
from peakward.records.op_graph import ITEM_BYTES


class SavedAttention(NamedTuple):
    """Of each part before the feed-forward network what autograd keeps."""

    attention_norm: SavedNorm
    qkv: SavedLinear
    attention: SavedScores | SavedFused
    out: SavedLinear
    ff_norm: SavedNorm


class SavedBlock(NamedTuple):
    """What autograd keeps of all parts."""

    until: SavedAttention
    ff: SavedFeedForward | SavedExperts


def forward(line: Timeline, plan: Plan, x: int) -> tuple[SavedBlock, int]:
    """The residual stream → the same behind the block. x is there to the end: its caller has it."""
    until, between, normed = _until_feed_forward(line, plan, x)
    ff, y = _feed_forward(line, plan, normed)
    behind = line.op(plan.hidden.n_bytes, between, y)
    line.use(x)
    if plan.norm == "fused":
        line.use(normed)  # A local of the block.
    return SavedBlock(until, ff), behind


def forward_until_saved(line: Timeline, plan: Plan, x: int) -> SavedBlock:
    """As far as torch recomputes the last block of a run: until all that it keeps is there."""
    until, between, normed = _until_feed_forward(line, plan, x)
    run = feed_forward.until_saved if plan.shape.n_experts == 1 else experts.until_saved
    ff = run(line, plan, normed)
    line.use(between, x)
    return SavedBlock(until, ff)


def backward(line: Timeline, plan: Plan, saved: SavedBlock, gradient: int) -> int:
    """Gradient behind the block → before it, added to in place (`InputBuffer::accumulate`)."""
    rows, parts = plan.tokens, saved.until
    x = _feed_forward_backward(line, plan, saved.ff, gradient)
    if plan.sums_in_norm:
        gradient = norms.backward(line, plan, parts.ff_norm, x, gradient)
    else:
        line.use(norms.backward(line, plan, parts.ff_norm, x), gradient)
    narrow = _narrow(line, plan, gradient)
    mixed = linear.backward(line, parts.out, narrow, rows, plan.compute)
    packed = attention.backward(line, plan, parts.attention, mixed)
    x = linear.backward(line, parts.qkv, packed, rows, plan.stored)
    line.use(norms.backward(line, plan, parts.attention_norm, x), gradient)
    return gradient


def _feed_forward(
    line: Timeline, plan: Plan, normed: int
) -> tuple[SavedFeedForward | SavedExperts, int]:
    run = feed_forward.forward if plan.shape.n_experts == 1 else experts.forward
    return run(line, plan, normed)


def _feed_forward_backward(
    line: Timeline, plan: Plan, saved: SavedFeedForward | SavedExperts, gradient: int
) -> int:
    if isinstance(saved, SavedFeedForward):
        return feed_forward.backward(line, plan, saved, _narrow(line, plan, gradient))
    if not sums_in_fp32(plan):
        gradient = _narrow(line, plan, gradient)
    return experts.backward(line, plan, saved, gradient)


def _until_feed_forward(line: Timeline, plan: Plan, x: int) -> tuple[SavedAttention, int, int]:
    """What is saved, the residual stream between the two halves, and the same normalised."""
    layer, rows = layers(plan), plan.tokens
    attention_norm, normed = norms.forward(line, plan, x)
    qkv, packed = linear.forward(line, layer.qkv, normed, rows, plan.stored)
    mixed = attention.forward(line, plan, packed)
    out, y = linear.forward(line, layer.out, mixed.result, rows, plan.compute)
    line.use(normed, *mixed.held)
    if plan.sums_in_norm:
        ff_norm, normed, between = norms.forward_of_sum(line, plan, x, y)
    else:
        between = line.op(plan.hidden.n_bytes, x, y)
        ff_norm, normed = norms.forward(line, plan, between)
        if plan.norm == "fused":
            line.use(y)  # An argument of what adds and normalises.
    return SavedAttention(attention_norm, qkv, mixed.saved, out, ff_norm), between, normed


def _narrow(line: Timeline, plan: Plan, gradient: int) -> int:
    """The gradient in the compute type."""
    if plan.stored == plan.compute:
        return gradient
    return line.op(plan.tokens * plan.shape.d_model * ITEM_BYTES[plan.compute], gradient)
