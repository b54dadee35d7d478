"""Attention with every pass over the score matrix made (`lab/ops/attention/reference.py`)."""

import math

from peakward.predict.operators.causal_mask import causal_mask
from peakward.predict.operators.layout import dense, is_view, swapped
from peakward.predict.operators.plan import Plan
from peakward.predict.operators.tape import BOOL, FLOAT, Tape, tensor, transposed
from peakward.records.op_graph import Operand


def forward(tape: Tape, plan: Plan) -> None:
    """Queries and keys, turned or not, and values → dense (batch, heads, seq, head_dim)."""
    shape = plan.shape
    q = _heads(plan, shape.n_heads)
    rotated = shape.positions == "rope"
    groups = shape.n_heads // shape.n_kv_heads
    if groups > 1:
        for _ in range(2):
            _repeated(tape, plan, groups)
    _as_batch(tape, q, dense(q.shape) if rotated else _packed(plan))
    keys = dense(q.shape) if rotated or groups > 1 else _packed(plan)
    _as_batch(tape, transposed(q), swapped(keys, 2, 3))
    weights = _weights(tape, plan)
    _as_batch(tape, q, dense(q.shape) if groups > 1 else _packed(plan))
    tape.product("bmm", _matrices(weights), _matrices(q))


def _weights(tape: Tape, plan: Plan) -> Operand:
    """Scores, mask and softmax: (batch, heads, seq, seq) in the compute type."""
    shape, q = plan.shape, _heads(plan, plan.shape.n_heads)
    tape.product("bmm", _matrices(q), _matrices(transposed(q)))
    scores = tape.pointwise("div", _scores(plan, plan.compute))
    if shape.positions == "alibi":
        scores = tape.pointwise("add", scores, tensor(FLOAT, shape.n_heads, plan.seq, plan.seq))
    forbidden = tape.pointwise("bitwise_not", causal_mask(tape, plan.seq, shape.window))
    masked = tape.cast(tape.pointwise("masked_fill", scores, forbidden), FLOAT)
    return tape.cast(tape.pointwise("_softmax", masked), plan.compute)


def backward(tape: Tape, plan: Plan) -> None:
    """Gradient of the result, heads side by side in memory → of queries, keys and values."""
    shape, q = plan.shape, _heads(plan, plan.shape.n_heads)
    together = (plan.batch, plan.seq, shape.n_heads, shape.head_dim)
    _as_batch(tape, q, swapped(dense(together), 1, 2))
    weights = _scores(plan, plan.compute)
    tape.product("bmm", _matrices(q), _matrices(transposed(q)))
    tape.product("bmm", _matrices(weights), _matrices(q))
    wide = tape.cast(weights, FLOAT)
    tape.pointwise("_softmax_backward_data", wide, wide)
    biased = FLOAT if shape.positions == "alibi" else plan.compute
    gradient = tape.cast(wide, biased)
    gradient = tape.pointwise("masked_fill", gradient, tensor(BOOL, plan.seq, plan.seq))
    tape.pointwise("div", tape.cast(gradient, plan.compute))
    tape.product("bmm", _matrices(weights), _matrices(q))
    tape.product("bmm", _matrices(transposed(q)), _matrices(weights))
    groups = shape.n_heads // shape.n_kv_heads
    if groups > 1:
        repeated = _grouped(plan, groups)
        batch, heads, _, *rest = repeated.shape
        for _ in range(2):
            tape.reduced("sum", repeated, batch, heads, 1, *rest)


def _heads(plan: Plan, n: int) -> Operand:
    return tensor(plan.compute, plan.batch, n, plan.seq, plan.shape.head_dim)


def _scores(plan: Plan, dtype: str) -> Operand:
    return tensor(dtype, plan.batch, plan.shape.n_heads, plan.seq, plan.seq)


def _grouped(plan: Plan, groups: int) -> Operand:
    """Keys or values repeated for the queries of each group."""
    shape = plan.shape
    sizes = (plan.batch, shape.n_kv_heads, groups, plan.seq, shape.head_dim)
    return tensor(plan.compute, *sizes)


def _repeated(tape: Tape, plan: Plan, groups: int) -> None:
    stored = _heads(plan, plan.shape.n_kv_heads).n_bytes
    tape.copied(_grouped(plan, groups), stored_bytes=stored)


def _packed(plan: Plan) -> tuple[int, ...]:
    """Strides of (batch, heads, seq, head_dim) inside what the query-key-value projection gives."""
    shape = plan.shape
    heads = shape.n_heads + 2 * shape.n_kv_heads
    return swapped(dense((plan.batch, plan.seq, heads, shape.head_dim)), 1, 2)


def _as_batch(tape: Tape, x: Operand, strides: tuple[int, ...]) -> None:
    """As a batch of matrices, copied where it has to be."""
    if not is_view(x.shape, strides, _matrices(x).shape):
        tape.copied(x)


def _matrices(x: Operand) -> Operand:
    return tensor(x.dtype, math.prod(x.shape[:-2]), *x.shape[-2:])
