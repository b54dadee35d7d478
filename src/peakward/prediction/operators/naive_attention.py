"""Attention with every pass over the score matrix made (`kernels/ops/attention/reference.py`)."""

from peakward.prediction.operators.causal_mask import causal_mask
from peakward.prediction.operators.heads import (
    all_keys,
    as_batch,
    matrices,
    packed,
    queries,
    repeated,
    summed,
)
from peakward.prediction.operators.layout import Strides, by_rows, dense, swapped
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import BOOL, FLOAT, HALF, Tape, tensor, transposed
from peakward.records.op_graph import Operand


def forward(tape: Tape, plan: Plan) -> Strides:
    """Queries and keys, turned or not, and values → dense (batch, heads, seq, head_dim).

    A cache's heads lie at equal distances: a batch of matrices without a copy, as dense ones are.
    """
    shape = plan.shape
    q, k = queries(plan), all_keys(plan)
    rotated = plan.turned_apart
    grouped = shape.n_heads != shape.n_kv_heads
    if grouped:
        for _ in ("keys", "values"):
            repeated(tape, plan, plan.compute)
    as_batch(tape, q, dense(q.shape) if rotated else packed(plan))
    elsewhere = grouped or plan.from_cache
    laid_out = dense(k.shape) if rotated or elsewhere else packed(plan)
    as_batch(tape, transposed(k), swapped(laid_out, 2, 3))
    weights = _weights(tape, plan)
    as_batch(tape, k, dense(k.shape) if elsewhere else packed(plan))
    tape.product("bmm", matrices(weights), matrices(k))
    return dense(q.shape)


def _weights(tape: Tape, plan: Plan) -> Operand:
    """Scores, mask and softmax: (batch, heads, seq, keys) in the compute type."""
    shape, q = plan.shape, queries(plan)
    tape.product("bmm", matrices(q), matrices(transposed(all_keys(plan))))
    scores = tape.pointwise("div", _scores(plan, plan.compute))
    if shape.positions == "alibi":
        scores = tape.pointwise("add", scores, tensor(FLOAT, shape.n_heads, plan.seq, plan.keys))
    if plan.masked:
        forbidden = tape.pointwise("bitwise_not", causal_mask(tape, plan.seq, shape.window))
        scores = tape.pointwise("masked_fill", scores, forbidden)
    if scores.dtype != HALF:  # Of fp16 alone CUDA's softmax gives fp32.
        scores = tape.cast(scores, FLOAT)
    return tape.cast(tape.pointwise("_softmax", scores, dtype=FLOAT), plan.compute)


def backward(tape: Tape, plan: Plan) -> None:
    """Gradient of the result, heads side by side in memory → of queries, keys and values."""
    shape, q = plan.shape, queries(plan)
    as_batch(tape, q, by_rows(q.shape))
    weights = _scores(plan, plan.compute)
    tape.product("bmm", matrices(q), matrices(transposed(q)))
    tape.product("bmm", matrices(weights), matrices(q))
    gradient = _softmax_backward(tape, plan, tape.cast(weights, FLOAT))
    gradient = tape.pointwise("masked_fill", gradient, tensor(BOOL, plan.seq, plan.seq))
    tape.pointwise("div", tape.cast(gradient, plan.compute))
    tape.product("bmm", matrices(weights), matrices(q))
    tape.product("bmm", matrices(transposed(q)), matrices(weights))
    if shape.n_heads != shape.n_kv_heads:
        for _ in ("keys", "values"):
            summed(tape, plan, plan.compute)


def _softmax_backward(tape: Tape, plan: Plan, wide: Operand) -> Operand:
    """Gradient of the weights in fp32 → of the scores in their type."""
    scores = FLOAT if plan.shape.positions == "alibi" else plan.compute
    if scores == HALF:
        return tape.pointwise("_softmax_backward_data", wide, wide, dtype=HALF)
    return tape.cast(tape.pointwise("_softmax_backward_data", wide, wide), scores)


def _scores(plan: Plan, dtype: str) -> Operand:
    return tensor(dtype, plan.batch, plan.shape.n_heads, plan.seq, plan.keys)
