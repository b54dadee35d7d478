"""Self-attention as a compiled block has it, operator by operator: that of `attention_kernels`, with the
values that go from one operator to the next."""

from typing import NamedTuple

from peakward.prediction.memory.attention import fused_scratch
from peakward.prediction.operators import positions
from peakward.prediction.operators.attention import BACKWARD, FORWARD, Mixed, side_by_side
from peakward.prediction.operators.block import Attention
from peakward.prediction.operators.compiled.trace import Trace
from peakward.prediction.operators.heads import (
    Strides,
    all_keys,
    by_rows,
    dense,
    is_view,
    keys,
    matrices,
    new_keys,
    packed,
    projected,
    queries,
    swapped,
)
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import BOOL, FLOAT, HALF, INT, Tape, tensor, transposed
from peakward.prediction.operators.writer import Value
from peakward.records.op_graph import Operand


class _Saved(NamedTuple):
    """Queries, keys and values, and what the kernel or the passes over the scores keep."""

    q: Value
    k: Value
    v: Value
    inner: tuple[Value, ...]


def _forward(on: Trace, plan: Plan, given: Value) -> Mixed:
    """Result of the first projection → (batch, seq, heads · head_dim)."""
    shape = plan.shape
    if plan.rotation is not None:
        given = plan.rotation.forward(on, plan, given.viewed(projected(plan)))
    first = (0, shape.n_heads * shape.head_dim, (shape.n_heads + shape.n_kv_heads) * shape.head_dim)
    kinds = (queries(plan), new_keys(plan), new_keys(plan))
    q, k, v = (on.piece(given, kind, at) for kind, at in zip(kinds, first, strict=True))
    if plan.turned_apart:
        q, k = (positions.rotation_forward(on, each, plan.stored) for each in (q, k))
    run = _naive if plan.attention == "naive" else _fused
    saved, result, strides = run(on, plan, q, k, v)
    return Mixed(saved, side_by_side(on, result, strides, ()), ())


def _backward(on: Trace, plan: Plan, saved: _Saved, gradient: Value) -> Value:
    """Gradient of (batch, seq, heads · head_dim) → of what the first projection gave."""
    run = _naive_backward if plan.attention == "naive" else _fused_backward
    q, k, v = run(on, plan, saved, gradient)
    if plan.turned_apart:
        k, q = (positions.rotation_backward(on, each, plan.stored) for each in (k, q))
    joined = on.joined(q, k, v, along=1)
    together = side_by_side(on, joined, dense(joined.operand.shape), ())
    if plan.rotation is not None:
        turned: Value = plan.rotation.backward(on, plan, together.viewed(joined.operand))
        return turned.viewed(together.operand)
    return together


TRACED = Attention(_forward, _backward)


# One kernel, torch's or Peakward's own.


def _fused(on: Trace, plan: Plan, q: Value, k: Value, v: Value) -> tuple[_Saved, Value, Strides]:
    mask, tape = _additive_mask(on, plan), Tape()
    strides = FORWARD[plan.attention](tape, plan)
    made = on.carried_out(tape.graph().operators[-1], (q, k, v, *mask))
    return _Saved(q, k, v, (*made, *mask)), made[0], strides


def _fused_backward(on: Trace, plan: Plan, saved: _Saved, gradient: Value) -> tuple[Value, ...]:
    tape = Tape()
    BACKWARD[plan.attention](tape, plan)
    inputs = (gradient, saved.q, saved.k, saved.v, *saved.inner)
    return on.carried_out(tape.graph().operators[-1], inputs, scratch=fused_scratch(plan))


def _additive_mask(on: Trace, plan: Plan) -> tuple[Value, ...]:
    """The mask that the kernel adds to the scores: none where it is causal alone."""
    found = positions.additive_mask(plan)
    if found is None:
        return ()
    allowed = _causal_mask(on, plan)
    if plan.shape.positions == "alibi":
        bias = on.cast(_bias(on, plan), plan.compute)
        return (on.pointwise("masked_fill", bias, on.pointwise("bitwise_not", allowed)),)
    return on.call("where", (allowed,), (found,))


# Passes over the scores, which are in memory.


def _naive(on: Trace, plan: Plan, q: Value, k: Value, v: Value) -> tuple[_Saved, Value, Strides]:
    dense_heads, every = dense(queries(plan).shape), all_keys(plan)
    turned, as_projected = plan.turned_apart, packed(plan)
    laid_out = dense_heads if turned else as_projected
    if plan.shape.n_heads != plan.shape.n_kv_heads:
        k, v, of_keys, of_values = (
            _repeated(on, plan, k),
            _repeated(on, plan, v),
            *(dense_heads,) * 2,
        )
    else:
        of_keys, of_values = laid_out, as_projected
    q = _as_batch(on, q, laid_out)
    across = _as_batch(on, k.viewed(transposed(every)), swapped(of_keys, 2, 3))
    scores = on.product("bmm", q, across).viewed(_scores(plan))
    softmax, weights, forbidden = _softmax(on, plan, scores)
    v = _as_batch(on, v, of_values)
    out = on.product("bmm", weights.viewed(matrices(_scores(plan))), v)
    return (
        _Saved(q, across, v, (forbidden, softmax, weights)),
        out.viewed(queries(plan)),
        dense_heads,
    )


def _softmax(on: Trace, plan: Plan, scores: Value) -> tuple[Value, Value, Value]:
    """Scaled and masked: in fp32, in the compute type, and what was masked."""
    scores = on.pointwise("div", scores)
    if plan.shape.positions == "alibi":
        scores = on.pointwise("add", scores, _bias(on, plan))
    forbidden = on.pointwise("bitwise_not", _causal_mask(on, plan))
    scores = on.pointwise("masked_fill", scores, forbidden)
    if scores.operand.dtype != HALF:  # Of fp16 alone CUDA's softmax gives fp32.
        scores = on.cast(scores, FLOAT)
    softmax = on.pointwise("_softmax", scores, dtype=FLOAT)
    return softmax, on.cast(softmax, plan.compute), forbidden


def _naive_backward(on: Trace, plan: Plan, saved: _Saved, gradient: Value) -> tuple[Value, ...]:
    q, every, (forbidden, softmax, weights) = queries(plan), all_keys(plan), saved.inner
    square = matrices(_scores(plan))
    given = _as_batch(on, gradient.viewed(q), by_rows(q.shape))
    across = saved.v.viewed(transposed(matrices(every)))
    of_weights = on.product("bmm", given, across).viewed(_scores(plan))
    dv = on.product("bmm", weights.viewed(transposed(square)), given).viewed(every)
    of_scores = _softmax_backward(on, plan, of_weights, softmax)
    of_scores = on.pointwise("masked_fill", of_scores, forbidden)
    of_scores = on.pointwise("div", on.cast(of_scores, plan.compute)).viewed(square)
    dq = on.product("bmm", of_scores, saved.k.viewed(matrices(every))).viewed(q)
    by_query = saved.q.viewed(transposed(matrices(q)))
    dk = on.product("bmm", by_query, of_scores).viewed(every)
    if plan.shape.n_heads != plan.shape.n_kv_heads:
        dk, dv = _summed(on, plan, dk), _summed(on, plan, dv)
    return dq, dk, dv


def _softmax_backward(on: Trace, plan: Plan, of_weights: Value, softmax: Value) -> Value:
    """Gradient of the weights → of the scores in their type."""
    scores = FLOAT if plan.shape.positions == "alibi" else plan.compute
    wide = on.cast(of_weights, FLOAT)
    if scores == HALF:
        return on.pointwise("_softmax_backward_data", wide, softmax, dtype=HALF)
    return on.cast(on.pointwise("_softmax_backward_data", wide, softmax), scores)


def _as_batch(on: Trace, x: Value, strides: Strides) -> Value:
    """x (batch, heads, m, n) as matrices, copied where its layout demands it."""
    if not is_view(x.operand.shape, strides, matrices(x.operand).shape):
        (x,) = on.call("clone", (x,), (x.operand,))
    return x.viewed(matrices(x.operand))


def _repeated(on: Trace, plan: Plan, x: Value) -> Value:
    """Keys or values once more for each query head of their group."""
    (made,) = on.call("clone", (x,), (_grouped(plan),))
    return made.viewed(all_keys(plan))


def _summed(on: Trace, plan: Plan, gradient: Value) -> Value:
    """The gradient of what was repeated: over each group."""
    (made,) = on.call("sum", (gradient.viewed(_grouped(plan)),), (keys(plan),))
    return made


def _grouped(plan: Plan) -> Operand:
    shape = plan.shape
    groups = shape.n_heads // shape.n_kv_heads
    return tensor(plan.compute, plan.batch, shape.n_kv_heads, groups, plan.keys, shape.head_dim)


def _scores(plan: Plan) -> Operand:
    return tensor(plan.compute, plan.batch, plan.shape.n_heads, plan.seq, plan.keys)


# Which keys a query may attend to.


def _causal_mask(on: Trace, plan: Plan) -> Value:
    """(seq, seq) of bool."""
    (places,) = on.call("arange", (), (tensor(INT, plan.seq),))
    (distance,) = on.call("sub", (places,), (tensor(INT, plan.seq, plan.seq),))
    mask = on.pointwise("ge", distance, dtype=BOOL)
    if plan.shape.window is not None:
        mask = on.pointwise("bitwise_and", mask, on.pointwise("lt", distance, dtype=BOOL))
    return mask


def _bias(on: Trace, plan: Plan) -> Value:
    """ALiBi's, which all blocks share."""
    return on.parameter(tensor(FLOAT, plan.shape.n_heads, plan.seq, plan.keys), "bias")
