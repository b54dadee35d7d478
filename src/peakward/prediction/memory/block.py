"""What one block holds, keeps for the backward pass, and holds there."""

from typing import NamedTuple

from peakward.prediction.memory import attention, linear, norms
from peakward.prediction.memory.fused_attention import SavedFused
from peakward.prediction.memory.linear import SavedLinear
from peakward.prediction.memory.naive_attention import SavedScores
from peakward.prediction.memory.norms import SavedNorm
from peakward.prediction.memory.timeline import Timeline
from peakward.prediction.operators.layers import layers
from peakward.prediction.operators.plan import Plan
from peakward.records.op_graph import ITEM_BYTES


class SavedParts(NamedTuple):
    """Of each part before the last product what autograd keeps."""

    attention_norm: SavedNorm
    qkv: SavedLinear
    attention: SavedScores | SavedFused
    out: SavedLinear
    ff_norm: SavedNorm
    up: SavedLinear
    widened: int
    activated: int
    product: int


class SavedBlock(NamedTuple):
    """What autograd keeps of all parts."""

    until: SavedParts
    down: SavedLinear


def forward(line: Timeline, plan: Plan, x: int) -> tuple[SavedBlock, int]:
    """The residual stream → the same behind the block. x is there to the end: its caller has it."""
    until, between, held = _until_last_product(line, plan, x)
    down, y = linear.forward(line, layers(plan).down, until.product, plan.tokens, plan.compute)
    line.use(*held)
    behind = line.op(plan.hidden.n_bytes, between, y)
    line.use(x)
    return SavedBlock(until, down), behind


def forward_until_saved(line: Timeline, plan: Plan, x: int) -> SavedBlock:
    """As far as torch recomputes the last block of a run: to the casts for the last product."""
    until, between, held = _until_last_product(line, plan, x)
    down = linear.casts(line, layers(plan).down, until.product, plan.tokens, plan.compute)
    line.use(*held, between, x)
    return SavedBlock(until, down)


def backward(line: Timeline, plan: Plan, saved: SavedBlock, gradient: int) -> int:
    """Gradient behind the block → before it, added to in place (`InputBuffer::accumulate`)."""
    rows, parts = plan.tokens, saved.until
    narrow = _narrow(line, plan, gradient)
    product = linear.backward(line, saved.down, narrow, rows, plan.compute)
    widened = _activated_backward(line, plan, parts, product)
    x = linear.backward(line, parts.up, widened, rows, plan.stored)
    line.use(norms.backward(line, plan, parts.ff_norm, x), gradient)
    narrow = _narrow(line, plan, gradient)
    mixed = linear.backward(line, parts.out, narrow, rows, plan.compute)
    packed = attention.backward(line, plan, parts.attention, mixed)
    x = linear.backward(line, parts.qkv, packed, rows, plan.stored)
    line.use(norms.backward(line, plan, parts.attention_norm, x), gradient)
    return gradient


def _until_last_product(
    line: Timeline, plan: Plan, x: int
) -> tuple[SavedParts, int, tuple[int, ...]]:
    """What is saved, the residual stream between the two halves, and what locals hold on to."""
    layer, rows = layers(plan), plan.tokens
    attention_norm, normed = norms.forward(line, plan, x)
    qkv, packed = linear.forward(line, layer.qkv, normed, rows, plan.stored)
    mixed = attention.forward(line, plan, packed)
    out, y = linear.forward(line, layer.out, mixed.result, rows, plan.compute)
    line.use(normed, *mixed.held)
    between = line.op(plan.hidden.n_bytes, x, y)
    ff_norm, normed = norms.forward(line, plan, between)
    up, widened = linear.forward(line, layer.up, normed, rows, plan.stored)
    activated, product = _activated(line, plan, widened)
    parts = SavedParts(
        attention_norm, qkv, mixed.saved, out, ff_norm, up, widened, activated, product
    )
    return parts, between, (normed, widened)


def _activated(line: Timeline, plan: Plan, widened: int) -> tuple[int, int]:
    """The activation, and what goes into the last product: its product with the other half."""
    width = _width(plan)
    activated = line.op(width, widened)
    return activated, line.op(width, activated, widened) if plan.shape.gated else activated


def _activated_backward(line: Timeline, plan: Plan, parts: SavedParts, product: int) -> int:
    width = _width(plan)
    line.saved(parts.widened, parts.activated)
    if not plan.shape.gated:
        return line.op(width, product, _kept_by_activation(plan, parts))
    activated = line.op(width, product, parts.widened)
    other = line.op(width, product, parts.activated)
    gate = line.op(width, activated, parts.widened)
    return line.op(2 * width, gate, other)


def _kept_by_activation(plan: Plan, parts: SavedParts) -> int:
    return parts.activated if plan.shape.activation == "relu" else parts.widened


def _narrow(line: Timeline, plan: Plan, gradient: int) -> int:
    """The gradient in the compute type."""
    if plan.stored == plan.compute:
        return gradient
    return line.op(plan.tokens * plan.shape.d_model * ITEM_BYTES[plan.compute], gradient)


def _width(plan: Plan) -> int:
    return plan.tokens * plan.shape.d_ff * ITEM_BYTES[plan.compute]
