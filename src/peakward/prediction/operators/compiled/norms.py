"""torch's RMSNorm in compiled code, with what Inductor fuses to it: a sum before it, a cast behind it, and
in the backward pass the gradient that went past.

The residual stream is written once a block: what attention adds to it stays a sum of two tensors.
"""

from typing import NamedTuple

from peakward.prediction.operators.compiled.linear import cast
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import FLOAT, Tape, of_type, tensor
from peakward.records.op_graph import Operand

PART_ROWS = 128
"""Rows that Inductor sums at once for a weight's gradient, where it sums in two steps."""
MIXED_PART_ROWS = 16
"""The same, where one kernel takes the sums along rows and across them."""
_MIXED_MIN_ROWS, _MIXED_MIN_ELEMENTS = 4096, 5 * 2**20


class Normed(NamedTuple):
    """A norm of the residual stream: what its gradient and its weight's gradient are made from."""

    gradient: Operand
    """The gradient of its result."""
    added: tuple[Operand, ...] = ()
    """To the stream before it, without being stored."""


def forward(tape: Tape, plan: Plan, *added: Operand) -> Operand:
    """The residual stream, with what is added to it → normalised, in the compute type."""
    y = of_type(plan.hidden, plan.compute)
    kept = (statistics(plan),) if plan.differentiated else ()
    names = _names("_fused_rms_norm", plan, added=bool(added))
    tape.fused("inner_reduction", names, (plan.hidden, *added, weight(plan)), (y, *kept))
    return y


def behind(tape: Tape, plan: Plan, attended: Operand, added: Operand) -> None:
    """The stream with what both halves of a block add to it."""
    tape.fused("pointwise", ("add",), (plan.hidden, attended, added), (plan.hidden,))


def between(tape: Tape, plan: Plan) -> None:
    """Gradient of what a block's second norm gave → of the stream before it, in its own type and in the
    compute type; its weight's is left to `before`."""
    _, second = _both(plan)
    narrowed = plan.stored != plan.compute
    backward(tape, plan, second, plan.hidden, narrowed=narrowed, summed=())


def before(tape: Tape, plan: Plan) -> None:
    """Gradient of what a block's first norm gave → of the block's input, and of both norms' weights."""
    first, second = _both(plan)
    mixed = mixes(plan)
    if not mixed:
        sum_parts(tape, plan, first, second)
    backward(
        tape, plan, first, plan.hidden, narrowed=False, summed=(first, second) if mixed else ()
    )
    for _ in (first, second):
        finish(tape, plan, added=True)


def last(tape: Tape, plan: Plan) -> None:
    """Gradient of what the final norm gave → of the stream before it, and of the weight."""
    norm, _ = _both(plan)
    summed = (norm,) if mixes(plan) else ()
    backward(tape, plan, norm, narrowed=False, summed=summed)
    if not summed:
        sum_parts(tape, plan, norm)
    finish(tape, plan, added=False)


def backward(
    tape: Tape, plan: Plan, norm: Normed, *past: Operand, narrowed: bool, summed: tuple[Normed, ...]
) -> None:
    """Gradient of what the norm gave → of the residual stream.

    Args:
        tape: to write on.
        plan: of the case.
        norm: the norm.
        past: the gradient that went past it, if one did.
        narrowed: whether the result is given in the compute type too.
        summed: norms whose weights' gradients are summed, part by part, in the same kernel.
    """
    x = plan.hidden
    inputs = (*_read(plan, norm), weight(plan), *past)
    for each in summed:
        inputs += _read(plan, each) if each is not norm else ()
    results = (x, of_type(x, plan.compute)) if narrowed else (x,)
    parts = (partial_sums(plan, MIXED_PART_ROWS),) * len(summed)
    names = _backward_names(plan, added=bool(past))
    tape.fused("inner_reduction", names, (x, *inputs), (*results, *parts))


def mixes(plan: Plan) -> bool:
    """Whether Inductor takes a weight's gradient in the kernel that takes the last norm's.

    `MixOrderReduction.can_fuse` of its `scheduler.py`: it pays where the rows are many.
    """
    d_model = plan.shape.d_model
    enough = plan.tokens * d_model >= _MIXED_MIN_ELEMENTS
    return enough and plan.tokens >= max(_MIXED_MIN_ROWS, 2 * d_model)


def sum_parts(tape: Tape, plan: Plan, *norms: Normed) -> None:
    """Sums the gradients of all these weights in one kernel, part by part of the rows."""
    inputs = [plan.hidden]
    for each in norms:
        inputs += _read(plan, each)
    names = _backward_names(plan, added=any(each.added for each in norms))
    parts = (partial_sums(plan, PART_ROWS),) * len(norms)
    tape.fused("outer_reduction", names, tuple(inputs), parts)


def finish(tape: Tape, plan: Plan, *, added: bool) -> None:
    """One weight's gradient from its partial sums."""
    if mixes(plan):
        total = tensor(FLOAT, plan.shape.d_model)
        tape.call("sum", (partial_sums(plan, MIXED_PART_ROWS),), (total,))
        cast(tape, total, plan.stored)
        return
    names = _backward_names(plan, added=added)
    tape.fused("outer_reduction", names, (partial_sums(plan, PART_ROWS),), (weight(plan),))


def statistics(plan: Plan) -> Operand:
    """The reciprocal root mean square of each position."""
    return tensor(FLOAT, plan.batch, plan.seq, 1)


def weight(plan: Plan) -> Operand:
    """(d_model,), as is its gradient."""
    return tensor(plan.stored, plan.shape.d_model)


def partial_sums(plan: Plan, n_rows: int) -> Operand:
    """One row for each part of so many."""
    return tensor(FLOAT, -(-plan.tokens // n_rows), plan.shape.d_model)


def _both(plan: Plan) -> tuple[Normed, Normed]:
    """A block's first norm and its second, before which attention's result is added."""
    narrow = of_type(plan.hidden, plan.compute)
    return Normed(narrow), Normed(narrow, added=(narrow,))


def _read(plan: Plan, norm: Normed) -> tuple[Operand, ...]:
    """Beside the stream, which several norms in one kernel share."""
    return (*norm.added, norm.gradient, statistics(plan))


def _backward_names(plan: Plan, *, added: bool) -> tuple[str, ...]:
    return ("_fused_rms_norm", *_names("_fused_rms_norm_backward", plan, added=added))


def _names(name: str, plan: Plan, *, added: bool) -> tuple[str, ...]:
    """With the sum before it, and the cast around it."""
    mixed = plan.stored != plan.compute
    return (name, *(("add",) if added else ()), *(("_to_copy",) if mixed else ()))
