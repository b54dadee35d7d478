"""One block: attention and feed-forward, each behind a norm and added to the residual stream."""

from collections.abc import Callable
from typing import NamedTuple

from peakward.prediction.operators import attention, experts, feed_forward, norms
from peakward.prediction.operators.layers import BLOCK, layers
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.products import products
from peakward.prediction.operators.tape import Tape, of_type
from peakward.records.op_graph import Operand


class _FeedForward(NamedTuple):
    """The functions of `feed_forward`, or those of `experts`."""

    forward: Callable[[Tape, Plan], Operand]
    until_saved: Callable[[Tape, Plan], None]
    """As far as it is recomputed where the block is the last of its run."""
    result: Callable[[Plan], Operand]
    backward: Callable[[Tape, Plan, Operand], None]


_ONE = _FeedForward(
    feed_forward.forward, feed_forward.until_saved, feed_forward.result, feed_forward.backward
)
_SEVERAL = _FeedForward(experts.forward, experts.until_saved, experts.result, experts.backward)


def forward(tape: Tape, plan: Plan) -> None:
    """The whole block."""
    _until_feed_forward(tape, plan)
    _add(tape, plan, _feed_forward(plan).forward(tape, plan))


def forward_until_saved(tape: Tape, plan: Plan) -> None:
    """As far as torch recomputes the last block of a run: until the last tensor that the backward
    pass needs is there, which is before the product of the last layer unless it is of fp8, and
    before a mixture weighs its experts' results."""
    _until_feed_forward(tape, plan)
    _feed_forward(plan).until_saved(tape, plan)


def backward(tape: Tape, plan: Plan) -> None:
    """Gradient of the residual stream behind the block → before it; also of all parameters."""
    second = _feed_forward(plan)
    second.backward(tape, plan, _gradient(tape, plan, second.result(plan)))
    if plan.sums_in_norm:
        with tape.module(f"{BLOCK}.ff_norm"):
            norms.backward(tape, plan, sums=True)
    else:
        _norm_backward(tape, plan, f"{BLOCK}.ff_norm")
    _attention_backward(tape, plan)


def _feed_forward(plan: Plan) -> _FeedForward:
    return _ONE if plan.shape.n_experts == 1 else _SEVERAL


def _until_feed_forward(tape: Tape, plan: Plan) -> None:
    layer, linear = layers(plan), products(plan)
    with tape.module(f"{BLOCK}.attention_norm"):
        normed = norms.forward(tape, plan)
    linear.forward(tape, layer.qkv, normed)
    with tape.module(f"{BLOCK}.attention"):
        mixed = attention.forward(tape, plan)
    attended = linear.forward(tape, layer.out, mixed)
    if not plan.sums_in_norm:
        _add(tape, plan, attended)
    with tape.module(f"{BLOCK}.ff_norm"):
        norms.forward(tape, plan, sums=plan.sums_in_norm)


def _add(tape: Tape, plan: Plan, x: Operand) -> None:
    with tape.module(BLOCK):
        tape.pointwise("add", plan.hidden, x)


def _attention_backward(tape: Tape, plan: Plan) -> None:
    layer, linear = layers(plan), products(plan)
    gradient = _gradient(tape, plan, of_type(plan.hidden, plan.compute))
    linear.backward(tape, layer.out, gradient, plan.compute)
    with tape.module(f"{BLOCK}.attention"):
        packed = attention.backward(tape, plan)
    linear.backward(tape, layer.qkv, packed, plan.stored)
    _norm_backward(tape, plan, f"{BLOCK}.attention_norm")


def _norm_backward(tape: Tape, plan: Plan, module: str) -> None:
    """And the sum with the gradient that went past, which autograd adds in its node's name."""
    with tape.module(module):
        gradient = norms.backward(tape, plan)
        tape.pointwise("add", gradient, gradient)


def _gradient(tape: Tape, plan: Plan, added: Operand) -> Operand:
    """Of what was added to the residual stream, in its type."""
    with tape.module(BLOCK):
        return tape.cast(plan.hidden, added.dtype)
