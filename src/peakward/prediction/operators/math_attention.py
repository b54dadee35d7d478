"""torch's scaled_dot_product_attention written out: `_scaled_dot_product_attention_math`.

In fp32 throughout: narrower queries, keys and values are widened, the result is narrowed. Queries
and keys are both scaled, each by the root of the factor, so that no score overflows.
"""

from peakward.prediction.operators.additive_mask import (
    additive_mask,
    as_numbers,
    make_additive_mask,
)
from peakward.prediction.operators.heads import (
    all_keys,
    as_batch,
    keys,
    like_queries,
    matrices,
    queries,
    repeated,
    summed,
)
from peakward.prediction.operators.layout import Strides, by_rows, dense, swapped
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import BOOL, FLOAT, Tape, of_type, tensor, transposed
from peakward.records.op_graph import Operand


def forward(tape: Tape, plan: Plan) -> Strides:
    """Queries, keys and values → (batch, heads, seq, head_dim)."""
    make_additive_mask(tape, plan)
    q = tape.cast(queries(plan), FLOAT)
    for _ in ("keys", "values"):
        tape.cast(keys(plan), FLOAT)
    tape.pointwise("mul", q)
    k = of_type(all_keys(plan), FLOAT)
    mask = additive_mask(plan) or (_causal(tape, plan) if plan.masked else None)
    grouped = plan.shape.n_heads != plan.shape.n_kv_heads
    if grouped:
        for _ in ("keys", "values"):
            repeated(tape, plan, FLOAT)
    elsewhere = grouped or plan.from_cache
    tape.pointwise("mul", transposed(k))
    as_batch(tape, q, like_queries(plan))
    as_batch(
        tape, transposed(k), swapped(dense(k.shape) if elsewhere else like_queries(plan), 2, 3)
    )
    tape.product("bmm", matrices(q), matrices(transposed(k)))
    scores = _scores(plan)
    if mask is not None:
        tape.pointwise("add", scores, mask)
    weights = tape.pointwise("_safe_softmax", scores)
    as_batch(tape, k, dense(k.shape) if elsewhere else by_rows(k.shape))
    tape.product("bmm", matrices(weights), matrices(k))
    tape.cast(q, plan.compute)
    tape.cast(weights, plan.compute)  # Which the caller drops.
    return dense(q.shape)


def backward(tape: Tape, plan: Plan) -> None:
    """Gradient of the result, heads side by side in memory → of queries, keys and values."""
    q = tape.cast(queries(plan), FLOAT)
    weights = _scores(plan)
    as_batch(tape, q, by_rows(q.shape))
    tape.product("bmm", matrices(q), matrices(transposed(q)))
    tape.product("bmm", matrices(weights), matrices(q))
    tape.pointwise("_softmax_backward_data", weights, weights)
    tape.product("bmm", matrices(weights), matrices(q))
    tape.product("bmm", matrices(transposed(q)), matrices(weights))
    tape.pointwise("mul", q)
    tape.pointwise("mul", transposed(q))
    if plan.shape.n_heads != plan.shape.n_kv_heads:
        for _ in ("keys", "values"):
            summed(tape, plan, FLOAT)
    for each in (queries(plan), keys(plan), keys(plan)):
        tape.cast(of_type(each, FLOAT), plan.compute)


def _causal(tape: Tape, plan: Plan) -> Operand:
    """(seq, seq) of fp32."""
    allowed = tape.pointwise("tril", tape.made("ones", BOOL, plan.seq, plan.seq))
    return as_numbers(tape, allowed, FLOAT)


def _scores(plan: Plan) -> Operand:
    return tensor(FLOAT, plan.batch, plan.shape.n_heads, plan.seq, plan.keys)
