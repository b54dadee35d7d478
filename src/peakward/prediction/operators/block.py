"""One block: attention and feed-forward, each behind a norm and added to the residual stream."""

from typing import NamedTuple

from peakward.prediction.operators import attention, norms
from peakward.prediction.operators.linear import Linear
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.products import products
from peakward.prediction.operators.tape import Tape, tensor
from peakward.records.op_graph import Operand

BLOCK = "blocks.*"
_ACTIVATIONS = {
    "silu": ("silu", "silu_backward"),
    "gelu": ("gelu", "gelu_backward"),
    "gelu-tanh": ("gelu", "gelu_backward"),
    "relu": ("relu", "threshold_backward"),
}


def forward(tape: Tape, plan: Plan) -> None:
    """The whole block."""
    mixed = _until_last_product(tape, plan)
    products(plan).forward(tape, layers(plan).down, mixed)
    _add(tape, plan)


def forward_until_saved(tape: Tape, plan: Plan) -> None:
    """As far as torch recomputes the last block of a run: until the last tensor that the backward
    pass needs is there, which is before the product of the last layer unless it is of fp8."""
    mixed = _until_last_product(tape, plan)
    products(plan).until_saved(tape, layers(plan).down, mixed)


def backward(tape: Tape, plan: Plan) -> None:
    """Gradient of the residual stream behind the block → before it; also of all parameters."""
    _feed_forward_backward(tape, plan)
    _attention_backward(tape, plan)


class Layers(NamedTuple):
    """A block's linear layers; `qkv` and `up` each stand for what the decoder packs in them."""

    qkv: Linear
    out: Linear
    up: Linear
    down: Linear


def layers(plan: Plan) -> Layers:
    """The block's, in the order in which they run."""
    shape = plan.shape
    query, heads = shape.n_heads * shape.head_dim, shape.n_heads + 2 * shape.n_kv_heads
    width = 2 * shape.d_ff if shape.gated else shape.d_ff
    types = (plan.stored, plan.compute)
    return Layers(
        qkv=Linear(
            f"{BLOCK}.attention.qkv", shape.d_model, heads * shape.head_dim, shape.qkv_bias, *types
        ),
        out=Linear(f"{BLOCK}.attention.out", query, shape.d_model, shape.bias, *types),
        up=Linear(f"{BLOCK}.ff.up", shape.d_model, width, shape.bias, *types),
        down=Linear(f"{BLOCK}.ff.down", shape.d_ff, shape.d_model, shape.bias, *types),
    )


def _until_last_product(tape: Tape, plan: Plan) -> Operand:
    layer, linear = layers(plan), products(plan)
    with tape.module(f"{BLOCK}.attention_norm"):
        normed = norms.forward(tape, plan)
    linear.forward(tape, layer.qkv, normed)
    with tape.module(f"{BLOCK}.attention"):
        mixed = attention.forward(tape, plan)
    linear.forward(tape, layer.out, mixed)
    _add(tape, plan)
    with tape.module(f"{BLOCK}.ff_norm"):
        normed = norms.forward(tape, plan)
    linear.forward(tape, layer.up, normed)
    return _activated(tape, plan)


def _activated(tape: Tape, plan: Plan) -> Operand:
    x = _activations(plan, plan.shape.d_ff)
    with tape.module(f"{BLOCK}.ff"):
        tape.pointwise(_ACTIVATIONS[plan.shape.activation][0], x)
        if plan.shape.gated:
            tape.pointwise("mul", x, x)
    return x


def _add(tape: Tape, plan: Plan) -> None:
    with tape.module(BLOCK):
        tape.pointwise("add", plan.hidden, _activations(plan, plan.shape.d_model))


def _feed_forward_backward(tape: Tape, plan: Plan) -> None:
    shape, layer, linear = plan.shape, layers(plan), products(plan)
    linear.backward(tape, layer.down, _gradient(tape, plan), plan.compute)
    x = _activations(plan, shape.d_ff)
    with tape.module(f"{BLOCK}.ff"):
        if shape.gated:
            tape.pointwise("mul", x, x)
            tape.pointwise("mul", x, x)
        tape.pointwise(_ACTIVATIONS[shape.activation][1], x, x)
        if shape.gated:
            x = tape.joined(x, x, along=2)
    linear.backward(tape, layer.up, x, plan.stored)
    _norm_backward(tape, plan, f"{BLOCK}.ff_norm")


def _attention_backward(tape: Tape, plan: Plan) -> None:
    layer, linear = layers(plan), products(plan)
    linear.backward(tape, layer.out, _gradient(tape, plan), plan.compute)
    with tape.module(f"{BLOCK}.attention"):
        packed = attention.backward(tape, plan)
    linear.backward(tape, layer.qkv, packed, plan.stored)
    _norm_backward(tape, plan, f"{BLOCK}.attention_norm")


def _norm_backward(tape: Tape, plan: Plan, module: str) -> None:
    """And the sum with the gradient that went past, which autograd adds in its node's name."""
    with tape.module(module):
        gradient = norms.backward(tape, plan)
        tape.pointwise("add", gradient, gradient)


def _gradient(tape: Tape, plan: Plan) -> Operand:
    """Of what was added to the residual stream, in its type."""
    with tape.module(BLOCK):
        return tape.cast(plan.hidden, plan.compute)


def _activations(plan: Plan, width: int) -> Operand:
    return tensor(plan.compute, plan.batch, plan.seq, width)
