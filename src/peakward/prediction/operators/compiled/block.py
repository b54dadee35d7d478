"""One block in compiled code, kernel by kernel as an H200 ran it (torch 2.11, recorded allocations): torch's
products and attention, Peakward's operators, and between them what Inductor fuses.

A block is one graph forward and one backward. The gradients of its weights are cast to the types of
the weights at the very end, so that until then those of all four lie there in the compute type.
"""

from typing import NamedTuple

from peakward.prediction.operators.compiled import attention, linear
from peakward.prediction.operators.compiled.attention import SavedAttention
from peakward.prediction.operators.compiled.kernels import Kernels
from peakward.prediction.operators.compiled.linear import SavedLinear
from peakward.prediction.operators.compiled.norms import SavedNorm
from peakward.prediction.operators.compiled.stream import stream
from peakward.prediction.operators.layers import BLOCK, layers
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import tensor
from peakward.prediction.operators.writer import Value
from peakward.records.op_graph import Operand


class SavedBlock(NamedTuple):
    """The values that the forward graph returns beside its result."""

    attention_norm: SavedNorm
    qkv: SavedLinear
    attention: SavedAttention
    out: SavedLinear
    ff_norm: SavedNorm
    up: SavedLinear
    both: Value
    down: SavedLinear

    @property
    def kept(self) -> tuple[Value, ...]:
        """All of it but the block's input, which its caller has."""
        layers_ = (self.qkv, self.out, self.up, self.down)
        return (
            *(each for layer in layers_ for each in (layer.x, layer.weight)),
            *self.attention.kept,
            *(self.attention_norm.statistics, self.ff_norm.statistics),
            *self.ff_norm.made,
            self.both,
        )


def forward(on: Kernels, plan: Plan, x: Value) -> tuple[SavedBlock, Value]:
    """The residual stream → the same behind the block."""
    layer, norms = layers(plan), stream(plan)
    with on.module(f"{BLOCK}.attention_norm"):
        first, y = norms.forward(on, plan, x)
    qkv, packed = linear.forward(on, layer.qkv, y)
    with on.module(f"{BLOCK}.attention"):
        attended, mixed = attention.forward(on, plan, packed)
    out, beside = linear.forward(on, layer.out, mixed)
    with on.module(BLOCK):
        second, y = norms.forward(on, plan, x, beside)
    up, both = linear.forward(on, layer.up, y)
    with on.module(f"{BLOCK}.ff"):
        gated = _activated(on, plan, both)
    down, added = linear.forward(on, layer.down, gated)
    with on.module(BLOCK):
        behind = norms.behind(on, plan, x, second, added)
    return SavedBlock(first, qkv, attended, out, second, up, both, down), behind


def backward(
    on: Kernels, plan: Plan, saved: SavedBlock, gradient: Value
) -> tuple[Value, list[Value]]:
    """Gradient of the residual stream behind the block → before it, and of all parameters."""
    norms = stream(plan)
    with on.module(BLOCK):
        narrow = on.narrowed(gradient, plan.compute)
    gated = linear.of_input(on, saved.down, narrow)
    down = linear.of_weight(on, saved.down, narrow)
    with on.module(f"{BLOCK}.ff"):
        both = _activated_backward(on, plan, gated, saved.both)
    normed = linear.of_input(on, saved.up, both)
    up = linear.of_weight(on, saved.up, both)
    with on.module(BLOCK):
        between = norms.between(on, plan, saved.ff_norm, normed, gradient)
    mixed = linear.of_input(on, saved.out, between.narrow)
    with on.module(f"{BLOCK}.attention"):
        attended = attention.backward(on, plan, saved.attention, mixed)
    out = linear.of_weight(on, saved.out, between.narrow)
    with on.module(f"{BLOCK}.attention"):
        packed = attention.joined(on, plan, attended)
    normed = linear.of_input(on, saved.qkv, packed)
    with on.module(BLOCK):
        before, weights = norms.before(on, plan, saved.attention_norm, normed, between)
    qkv = linear.of_weight(on, saved.qkv, packed)
    pairs = ((saved.out, out), (saved.qkv, qkv), (saved.down, down), (saved.up, up))
    return before, weights + [linear.widened(on, layer, each) for layer, each in pairs]


def _activated(on: Kernels, plan: Plan, both: Value) -> Value:
    """Result of the feed-forward network's first product → input of the second."""
    if plan.gating is not None:
        made: Value = plan.gating.forward(on, plan, both)[1]
        return made
    return on.fused("pointwise", ("mul", "silu"), (both,), (_gated(plan),))[0]


def _activated_backward(on: Kernels, plan: Plan, gradient: Value, both: Value) -> Value:
    """Gradient of what goes into the second product → of what the first gave, of which `both` is kept."""
    if plan.gating is not None:
        made: Value = plan.gating.backward(on, plan, (both,), gradient)
        return made
    names = ("cat", "mul", "silu", "silu_backward")
    return on.fused("pointwise", names, (gradient, both), (both.operand,))[0]


def _gated(plan: Plan) -> Operand:
    return tensor(plan.compute, plan.batch, plan.seq, plan.shape.d_ff)
