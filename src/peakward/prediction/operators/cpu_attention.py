"""torch's scaled_dot_product_attention on a CPU: one flash operator forward and one backward."""

from peakward.prediction.operators.additive_mask import additive_mask, make_additive_mask
from peakward.prediction.operators.heads import keys, like_queries, product_flops, queries
from peakward.prediction.operators.layout import Strides
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import FLOAT, Tape, tensor
from peakward.records.op_graph import Operand

_NAME = "_scaled_dot_product_flash_attention_for_cpu"


def forward(tape: Tape, plan: Plan) -> Strides:
    """Queries, keys and values → (batch, heads, seq, head_dim) and the rows' log-sum-exp."""
    q, k = queries(plan), keys(plan)
    make_additive_mask(tape, plan)
    outputs = (q, tensor(FLOAT, *q.shape[:3]))
    tape.call(_NAME, (q, k, k, *_mask(plan)), outputs, flops=product_flops(q, k) * 2)
    return like_queries(plan)


def backward(tape: Tape, plan: Plan) -> None:
    """The scores once more, and the gradients of query, key, weights and value: five products."""
    q, k = queries(plan), keys(plan)
    inputs = (q, q, k, k, q, tensor(FLOAT, *q.shape[:3]), *_mask(plan))
    tape.call(f"{_NAME}_backward", inputs, (q, k, k), flops=product_flops(q, k) * 5)


def _mask(plan: Plan) -> tuple[Operand, ...]:
    mask = additive_mask(plan)
    return () if mask is None else (mask,)
