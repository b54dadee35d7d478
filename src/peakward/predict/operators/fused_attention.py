"""torch's scaled_dot_product_attention as one operator forward and one backward: on a CPU, flash."""

from peakward.predict.operators.causal_mask import causal_mask
from peakward.predict.operators.plan import Plan
from peakward.predict.operators.tape import FLOAT, Tape, tensor
from peakward.records.op_graph import Operand

_NAME = "_scaled_dot_product_flash_attention_for_cpu"


def forward(tape: Tape, plan: Plan) -> None:
    """Queries, keys and values → (batch, heads, seq, head_dim) and the rows' log-sum-exp."""
    q, k = _inputs(plan)
    mask = _mask(tape, plan)
    outputs = (q, tensor(FLOAT, *q.shape[:3]))
    tape.call(_NAME, (q, k, k, *mask), outputs, flops=_product_flops(plan) * 2)


def backward(tape: Tape, plan: Plan) -> None:
    """The scores once more, and the gradients of query, key, weights and value: five products."""
    q, k = _inputs(plan)
    inputs = (q, q, k, k, q, tensor(FLOAT, *q.shape[:3]), *_mask_operand(plan))
    tape.call(f"{_NAME}_backward", inputs, (q, k, k), flops=_product_flops(plan) * 5)


def _inputs(plan: Plan) -> tuple[Operand, Operand]:
    shape = plan.shape
    q = tensor(plan.compute, plan.batch, shape.n_heads, plan.seq, shape.head_dim)
    return q, tensor(plan.compute, plan.batch, shape.n_kv_heads, plan.seq, shape.head_dim)


def _product_flops(plan: Plan) -> int:
    shape = plan.shape
    return 2 * plan.batch * shape.n_heads * plan.seq**2 * shape.head_dim


def _windowed(plan: Plan) -> bool:
    return plan.shape.window is not None and plan.shape.window < plan.seq


def _mask_operand(plan: Plan) -> tuple[Operand, ...]:
    """The mask as the kernel gets it: none where it is causal and nothing else."""
    if plan.shape.positions == "alibi":
        return (tensor(plan.compute, 1, plan.shape.n_heads, plan.seq, plan.seq),)
    return (tensor(plan.compute, plan.seq, plan.seq),) if _windowed(plan) else ()


def _mask(tape: Tape, plan: Plan) -> tuple[Operand, ...]:
    """ALiBi's bias with the forbidden keys filled in, or a window's 0 and minus infinity."""
    if plan.shape.positions == "alibi":
        allowed = causal_mask(tape, plan.seq, plan.shape.window)
        bias = tensor(FLOAT, plan.shape.n_heads, plan.seq, plan.seq)
        bias = tape.cast(bias, plan.compute)
        tape.pointwise("masked_fill", bias, tape.pointwise("bitwise_not", allowed))
    elif _windowed(plan):
        allowed = causal_mask(tape, plan.seq, plan.shape.window)
        values = [tape.made("scalar_tensor", plan.compute) for _ in range(2)]
        tape.pointwise("where", allowed, *values)
    return _mask_operand(plan)
