"""Norms of compiled code, with what Inductor fuses to them."""

from collections.abc import Callable
from typing import Any, NamedTuple

from peakward.prediction.operators import norms
from peakward.prediction.operators.compiled import reductions
from peakward.prediction.operators.compiled.kernels import Kernels
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import FLOAT, of_type, tensor
from peakward.prediction.operators.writer import Value
from peakward.records.op_graph import Operand

# torch's norms in compiled code, with what Inductor fuses to them: a sum before one, a cast behind it, and
# in the backward pass the gradient that went past. Around a block's own, RMSNorm alone (`block.is_profiled`).
#
# The residual stream is written once a block: what attention adds to it stays a sum of two tensors.


class SavedNorm(NamedTuple):
    """The input as the tensors that it is the sum of, and the statistics of each position."""

    x: Value
    """The residual stream; of a lever's norm the sum."""
    added: tuple[Value, ...]
    """To the stream before it, without being stored."""
    statistics: tuple[Value, ...]
    made: tuple[Value, ...] = ()
    """The input's tensors that the graph made; its caller has the stream before a block."""


class Normed(NamedTuple):
    """A norm, and the gradient of what it gave."""

    saved: SavedNorm
    gradient: Value

    @property
    def reads(self) -> tuple[Value, ...]:
        """The values that its gradients are made from, but the stream, which norms in one kernel share."""
        return (*self.saved.added, self.gradient, *self.saved.statistics)


class Between(NamedTuple):
    """The gradient of the stream between the halves of a block."""

    narrow: Value
    """In the compute type."""
    wide: Value
    second: Normed


def forward(on: Kernels, plan: Plan, x: Value, *added: Value) -> tuple[SavedNorm, Value]:
    """The residual stream, with what is added to it → normalised, in the compute type."""
    y, reads = of_type(plan.hidden, plan.compute), (x, *added, *map(Value, weights(plan)))
    names = _names(_operator(plan), plan, added=bool(added))
    kept = statistics(plan) if plan.differentiated else ()
    *figures, normed = on.fused("inner_reduction", names, reads, (*kept, y))
    return SavedNorm(x, added, tuple(figures), added), normed


def behind(on: Kernels, plan: Plan, x: Value, second: SavedNorm, added: Value) -> Value:
    """The stream with what both halves of a block add to it."""
    terms = (x, *second.added, added)
    return on.fused("pointwise", ("add",), terms, (plan.hidden,), over=added)[0]


def between(on: Kernels, plan: Plan, saved: SavedNorm, gradient: Value, past: Value) -> Between:
    """Gradient of what a block's second norm gave, and the one that went past it → of the stream before it,
    in its own type and in the compute type; its weight's is left to `before`."""
    second = Normed(saved, gradient)
    results = tuple(dict.fromkeys((plan.hidden, of_type(plan.hidden, plan.compute))))
    wide, *narrow = _into_stream(on, plan, second, results, past)
    return Between(narrow[0] if narrow else wide, wide, second)


def before(
    on: Kernels, plan: Plan, saved: SavedNorm, gradient: Value, past: Between
) -> tuple[Value, list[Value]]:
    """Gradient of what a block's first norm gave → of the block's input, and of both norms' weights."""
    first = Normed(saved, gradient)
    if mixes(plan):
        x, *parts = _mixed(on, plan, first, past.second, past=past.wide)
    else:
        parts = _sum_parts(on, plan, first, past.second)
        (x,) = _into_stream(on, plan, first, (plan.hidden,), past.wide, over=past.wide)
    return x, [_finished(on, plan, each, added=True) for each in parts]


def last(on: Kernels, plan: Plan, saved: SavedNorm, gradient: Value) -> tuple[Value, list[Value]]:
    """Gradient of what the final norm gave → of the stream before it, and of its parameters."""
    norm = Normed(saved, gradient)
    if mixes(plan):
        x, *parts = _mixed(on, plan, norm)
    else:
        (x,) = _into_stream(on, plan, norm, (plan.hidden,))
        parts = _sum_parts(on, plan, norm)
    return x, [_finished(on, plan, each, added=False) for each in parts]


def _into_stream(
    on: Kernels,
    plan: Plan,
    norm: Normed,
    results: tuple[Operand, ...],
    *past: Value,
    over: Value | None = None,
) -> tuple[Value, ...]:
    """Gradient of what the norm gave, with the one that went past it, if one did → of the residual stream."""
    names, reads = _backward_names(plan, added=bool(past)), (norm.saved.x, *norm.reads)
    reads = (*reads, Value(weights(plan)[0]), *past)
    return on.fused("inner_reduction", names, reads, results, over=over)


def _mixed(on: Kernels, plan: Plan, *norms: Normed, past: Value | None = None) -> tuple[Value, ...]:
    """One kernel takes the first norm's gradient along the rows, with what went past it, and for every norm
    the sums over parts of the rows, all of which lie in one workspace."""
    first, *others = norms
    beside = () if past is None else (past,)
    reads = (first.saved.x, *first.reads, Value(weights(plan)[0]), *beside)
    reads += tuple([each for norm in others for each in norm.reads])
    n_parts = len(norms) * len(weights(plan))
    parts = (partial_sums(plan, reductions.MIXED_PART_ROWS),) * n_parts
    return on.fused(
        "mixed_reduction",
        _backward_names(plan, added=past is not None),
        reads,
        (plan.hidden, *parts),
        over=past,
        n_in_workspace=len(parts),
    )


def mixes(plan: Plan) -> bool:
    """Whether Inductor takes a weight's gradient in the kernel that takes the last norm's."""
    return reductions.mixes(plan.tokens, plan.shape.d_model)


def _sum_parts(on: Kernels, plan: Plan, *norms: Normed) -> list[Value]:
    """Sums the gradients of all these weights in one kernel, part by part of the rows."""
    reads = (norms[0].saved.x, *(each for norm in norms for each in norm.reads))
    names = _backward_names(plan, added=any(each.saved.added for each in norms))
    n_parts = len(norms) * len(weights(plan))
    parts = (partial_sums(plan, reductions.PART_ROWS),) * n_parts
    return list(on.fused("outer_reduction", names, reads, parts))


def _finished(on: Kernels, plan: Plan, parts: Value, *, added: bool) -> Value:
    """One weight's gradient from its partial sums; by torch's own sum where a mixed kernel made them."""
    if mixes(plan):
        (total,) = on.call("sum", (parts,), (tensor(FLOAT, plan.shape.d_model),))
        return on.narrowed(total, plan.stored)
    names = _backward_names(plan, added=added)
    return on.fused("outer_reduction", names, (parts,), (weights(plan)[0],))[0]


def statistics(plan: Plan) -> tuple[Operand, ...]:
    """The reciprocal deviation of each position, and in LayerNorm its mean."""
    return (tensor(FLOAT, plan.batch, plan.seq, 1),) * len(weights(plan))


def weights(plan: Plan) -> tuple[Operand, ...]:
    """The weight, and in LayerNorm the bias: each (d_model,), as are their gradients."""
    n_vectors = 2 if plan.shape.norm == "layernorm" else 1
    return (tensor(plan.stored, plan.shape.d_model),) * n_vectors


def partial_sums(plan: Plan, n_rows: int) -> Operand:
    """One row for each part of so many."""
    return tensor(FLOAT, -(-plan.tokens // n_rows), plan.shape.d_model)


def _backward_names(plan: Plan, *, added: bool) -> tuple[str, ...]:
    name = _operator(plan)
    return (name, *_names(f"{name}_backward", plan, added=added))


def _operator(plan: Plan) -> str:
    return "native_layer_norm" if plan.shape.norm == "layernorm" else "_fused_rms_norm"


def _names(name: str, plan: Plan, *, added: bool) -> tuple[str, ...]:
    """With the sum before it, and the cast around it."""
    mixed = plan.stored != plan.compute
    return (name, *(("add",) if added else ()), *(("_to_copy",) if mixed else ()))


# A lever's norm in compiled code: one operator each way, and beside it the casts and sums that Inductor
# fuses to torch's. With it the residual stream is written twice a block.


class OwnBetween(NamedTuple):
    """The gradient of the stream between the halves of a block."""

    narrow: Value
    """In the compute type."""
    parts: tuple[Value, ...]
    """The terms of the sum: one where the norm's kernel made the sum."""
    weight: Value
    """The second norm's weight's gradient."""


def own_forward(on: Kernels, plan: Plan, *stream: Value) -> tuple[SavedNorm, Value]:
    """The residual stream → normalised, in the compute type. What is added to it is summed first, by the
    norm's own kernel where both are of one type."""
    given = stream
    if len(stream) > 1 and not plan.sums_in_norm:
        given = on.fused("pointwise", ("add",), stream, (plan.hidden,))
    saved, y, _ = norms.forward(on, plan, *given)
    made = (saved.x,) if len(stream) > 1 else ()
    return SavedNorm(saved.x, (), saved.statistics, made), on.narrowed(y, plan.compute)


def own_behind(on: Kernels, plan: Plan, x: Value, second: SavedNorm, added: Value) -> Value:
    """The stream, `x` and attention's result in it already, with what is added to it last."""
    del x
    alike = added if plan.sums_in_norm else None
    # The sum is kept for a backward pass.
    over = alike if plan.differentiated else alike or second.x
    return on.fused("pointwise", ("add",), (second.x, added), (plan.hidden,), over=over)[0]


def own_between(
    on: Kernels, plan: Plan, saved: SavedNorm, gradient: Value, past: Value
) -> OwnBetween:
    """Gradient of what a block's second norm gave, and the one that went past it → of the stream before it,
    in the compute type; also of the weight."""
    beside = (past,) if plan.sums_in_norm else ()
    x, (weight,) = _own_backward(on, plan, saved, gradient, *beside)
    if plan.sums_in_norm:
        return OwnBetween(x, (x,), weight)
    narrow = of_type(plan.hidden, plan.compute)
    (made,) = on.fused("pointwise", ("add", "_to_copy"), (past, x), (narrow,))
    return OwnBetween(made, (x, past), weight)


def own_before(
    on: Kernels, plan: Plan, saved: SavedNorm, gradient: Value, past: OwnBetween
) -> tuple[Value, list[Value]]:
    """Gradient of what a block's first norm gave → of the block's input, and of both norms' weights."""
    x, (weight,) = _own_backward(on, plan, saved, gradient)
    terms = (*past.parts, x)
    (total,) = on.fused("pointwise", ("add",), terms, (plan.hidden,), over=past.parts[0])
    return total, [weight, past.weight]


def own_last(
    on: Kernels, plan: Plan, saved: SavedNorm, gradient: Value
) -> tuple[Value, list[Value]]:
    """Gradient of what the final norm gave → of the stream before it, and of its parameters."""
    return _own_backward(on, plan, saved, gradient)


def _own_backward(
    on: Kernels, plan: Plan, saved: SavedNorm, gradient: Value, *past: Value
) -> tuple[Value, list[Value]]:
    wide = on.narrowed(gradient, plan.stored)
    kept = norms.SavedNorm(saved.x, saved.statistics)
    x = norms.backward(on, plan, kept, wide, *past)
    return x, [on.gradients.pop() for _ in weights(plan)]


# Whose norm stands between the residual stream and the products of compiled code.


class Stream(NamedTuple):
    """The functions of torch's norm, or those of a lever's; what `between` gives is for `before` to read."""

    forward: Callable[..., tuple[SavedNorm, Value]]
    behind: Callable[[Kernels, Plan, Value, SavedNorm, Value], Value]
    between: Callable[[Kernels, Plan, SavedNorm, Value, Value], Any]
    before: Callable[[Kernels, Plan, SavedNorm, Value, Any], tuple[Value, list[Value]]]
    last: Callable[[Kernels, Plan, SavedNorm, Value], tuple[Value, list[Value]]]


_TORCH = Stream(forward, behind, between, before, last)
_OWN = Stream(own_forward, own_behind, own_between, own_before, own_last)


def stream(plan: Plan) -> Stream:
    """The case's."""
    return _TORCH if plan.norm is None else _OWN
