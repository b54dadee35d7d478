"""The mask that scaled_dot_product_attention adds to the scores: none where it is causal."""

from peakward.prediction.operators.causal_mask import causal_mask
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import FLOAT, Tape, tensor
from peakward.records.op_graph import Operand


def additive_mask(plan: Plan) -> Operand | None:
    """ALiBi's bias, (1, heads, seq, keys), or a window's 0 and minus infinity, (seq, seq)."""
    if plan.shape.positions == "alibi":
        return tensor(plan.compute, 1, plan.shape.n_heads, plan.seq, plan.keys)
    return tensor(plan.compute, plan.seq, plan.seq) if _windowed(plan) else None


def make_additive_mask(tape: Tape, plan: Plan) -> None:
    """The bias with the forbidden keys filled in, or the window's as numbers."""
    if plan.shape.positions == "alibi":
        allowed = causal_mask(tape, plan.seq, plan.shape.window) if plan.masked else None
        bias = tensor(FLOAT, plan.shape.n_heads, plan.seq, plan.keys)
        bias = tape.cast(bias, plan.compute)
        if allowed is not None:
            tape.pointwise("masked_fill", bias, tape.pointwise("bitwise_not", allowed))
    elif _windowed(plan):
        as_numbers(tape, causal_mask(tape, plan.seq, plan.shape.window), plan.compute)


def as_numbers(tape: Tape, allowed: Operand, dtype: str) -> Operand:
    """0 where `allowed` (seq, seq) of bool is true, else minus infinity."""
    zero, infinity = (tape.made("scalar_tensor", dtype) for _ in range(2))
    return tape.pointwise("where", allowed, zero, infinity)


def _windowed(plan: Plan) -> bool:
    return plan.shape.window is not None and plan.shape.window < plan.seq
