"""Attention with the scores in memory, compiled: each pass over them does all that lies between two
products."""

from peakward.prediction.operators.heads import matrices, queries
from peakward.prediction.operators.layout import Strides, dense
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import BOOL, FLOAT, Tape, tensor, transposed
from peakward.records.op_graph import Operand

_MASK = ("arange", "bitwise_not", "ge", "sub")


def forward(tape: Tape, plan: Plan) -> Strides:
    """Queries and keys, turned, and values → dense (batch, heads, seq, head_dim)."""
    q = queries(plan)
    if not plan.turned_apart:  # They lie as the projection laid them.
        tape.fused("pointwise", ("clone",), (q,), (q,))
        tape.fused("pointwise", ("clone",), (transposed(q),), (transposed(q),))
    tape.product("bmm", matrices(q), matrices(transposed(q)))
    _softmax(tape, plan)
    tape.fused("pointwise", ("clone",), (q,), (q,))  # Of the values, out of the projection.
    tape.product("bmm", matrices(_scores(plan)), matrices(q))
    return dense(q.shape)


def backward(tape: Tape, plan: Plan) -> None:
    """Gradient of the result, row by row → of queries, keys and values."""
    q, weights = queries(plan), _scores(plan)
    tape.fused("pointwise", ("clone",), (q,), (q,))
    tape.product("bmm", matrices(transposed(weights)), matrices(q))
    tape.product("bmm", matrices(q), matrices(transposed(q)))
    names, kept = ["_softmax_backward_data", "div", "masked_fill"], [weights]
    if plan.compute != FLOAT:  # The weights were narrowed, and are made again from the scores.
        names += ["_softmax", "_to_copy"]
        kept += _statistics(plan)
    tape.fused("inner_reduction", names, (weights, *kept, _forbidden(plan)), (weights,))
    tape.product("bmm", matrices(transposed(q)), matrices(weights))
    tape.product("bmm", matrices(weights), matrices(q))


def _softmax(tape: Tape, plan: Plan) -> None:
    """Scaled, masked and narrowed; the mask is made in it where no backward pass needs it again."""
    narrowed, scores = plan.compute != FLOAT, _scores(plan)
    names = ("_softmax", "div", "masked_fill", *(("_to_copy",) if narrowed else ()))
    if not plan.differentiated:
        tape.fused("inner_reduction", (*names, *_MASK), (scores,), (scores,))
        return
    kept = _statistics(plan) if narrowed else ()
    tape.fused("pointwise", _MASK, (), (_forbidden(plan),))
    tape.fused("inner_reduction", names, (scores, _forbidden(plan)), (scores, *kept))


def _scores(plan: Plan) -> Operand:
    return tensor(plan.compute, plan.batch, plan.shape.n_heads, plan.seq, plan.seq)


def _statistics(plan: Plan) -> tuple[Operand, Operand]:
    """Largest score and sum of exponentials of each row."""
    row = tensor(FLOAT, plan.batch, plan.shape.n_heads, plan.seq, 1)
    return row, row


def _forbidden(plan: Plan) -> Operand:
    return tensor(BOOL, plan.seq, plan.seq)
