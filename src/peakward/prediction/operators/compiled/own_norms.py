"""A lever's norm in compiled code: one operator each way, and beside it the casts and sums that Inductor
fuses to torch's. With it the residual stream is written twice a block.
"""

from typing import NamedTuple

from peakward.prediction.operators import norms
from peakward.prediction.operators.compiled.kernels import Kernels
from peakward.prediction.operators.compiled.norms import SavedNorm
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import of_type
from peakward.prediction.operators.writer import Value


class Between(NamedTuple):
    """The gradient of the stream between the halves of a block."""

    narrow: Value
    """In the compute type."""
    parts: tuple[Value, ...]
    """The terms of the sum: one where the norm's kernel made the sum."""
    weight: Value
    """The second norm's weight's gradient."""


def forward(on: Kernels, plan: Plan, *stream: Value) -> tuple[SavedNorm, Value]:
    """The residual stream → normalised, in the compute type. What is added to it is summed first, by the
    norm's own kernel where both are of one type."""
    given = stream
    if len(stream) > 1 and not plan.sums_in_norm:
        given = on.fused("pointwise", ("add",), stream, (plan.hidden,))
    saved, y, _ = norms.forward(on, plan, *given)
    made = (saved.x,) if len(stream) > 1 else ()
    (statistics,) = saved.statistics
    return SavedNorm(saved.x, (), statistics, made), on.narrowed(y, plan.compute)


def behind(on: Kernels, plan: Plan, x: Value, second: SavedNorm, added: Value) -> Value:
    """The stream, `x` and attention's result in it already, with what is added to it last."""
    del x
    alike = added if plan.sums_in_norm else None
    # The sum is kept for a backward pass.
    over = alike if plan.differentiated else alike or second.x
    return on.fused("pointwise", ("add",), (second.x, added), (plan.hidden,), over=over)[0]


def between(on: Kernels, plan: Plan, saved: SavedNorm, gradient: Value, past: Value) -> Between:
    """Gradient of what a block's second norm gave, and the one that went past it → of the stream before it,
    in the compute type; also of the weight."""
    beside = (past,) if plan.sums_in_norm else ()
    x, weight = _backward(on, plan, saved, gradient, *beside)
    if plan.sums_in_norm:
        return Between(x, (x,), weight)
    narrow = of_type(plan.hidden, plan.compute)
    (made,) = on.fused("pointwise", ("add", "_to_copy"), (past, x), (narrow,))
    return Between(made, (x, past), weight)


def before(
    on: Kernels, plan: Plan, saved: SavedNorm, gradient: Value, past: Between
) -> tuple[Value, list[Value]]:
    """Gradient of what a block's first norm gave → of the block's input, and of both norms' weights."""
    x, weight = _backward(on, plan, saved, gradient)
    terms = (*past.parts, x)
    (total,) = on.fused("pointwise", ("add",), terms, (plan.hidden,), over=past.parts[0])
    return total, [weight, past.weight]


def last(on: Kernels, plan: Plan, saved: SavedNorm, gradient: Value) -> tuple[Value, Value]:
    """Gradient of what the final norm gave → of the stream before it, and of the weight."""
    return _backward(on, plan, saved, gradient)


def _backward(
    on: Kernels, plan: Plan, saved: SavedNorm, gradient: Value, *past: Value
) -> tuple[Value, Value]:
    wide = on.narrowed(gradient, plan.stored)
    kept = norms.SavedNorm(saved.x, (saved.statistics,))
    x = norms.backward(on, plan, kept, wide, *past)
    return x, on.gradients.pop()
