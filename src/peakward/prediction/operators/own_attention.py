"""Peakward's own attention kernels, each one operator forward and one backward.

As of torch's, FLOPs are of whole products, though blocks of keys that no query of theirs sees are
skipped, and bytes those of operands: what is added up in fp32 meanwhile is the kernel's own affair
(`prediction.time.own_kernels`, `prediction.memory.attention`).
"""

from peakward.prediction.operators.heads import keys, like_queries, product_flops, queries
from peakward.prediction.operators.layout import Strides, dense
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import FLOAT, Tape, tensor
from peakward.records.op_graph import Operand

_NAME, _TO_CACHE = "flash_attention", "decode_attention"
_PRODUCTS, _PRODUCTS_BACKWARD = 2, 5
"""Scores and mix; the scores once more, then gradients of query, key, weights and value."""


def forward(tape: Tape, plan: Plan) -> Strides:
    """Queries, keys and values → (batch, heads, seq, head_dim), and the rows' log-sum-exp."""
    q, k = queries(plan), keys(plan)
    tape.own(_NAME, (q, k, k), (q, _log_sums(plan)), flops=product_flops(q, k) * _PRODUCTS)
    return like_queries(plan)


def to_cache(tape: Tape, plan: Plan) -> Strides:
    """As `forward`, of one new token a sequence; its result is dense."""
    q, k = queries(plan), keys(plan)
    tape.own(_TO_CACHE, (q, k, k), (q, _log_sums(plan)), flops=product_flops(q, k) * _PRODUCTS)
    return dense(q.shape)


def backward(tape: Tape, plan: Plan) -> None:
    """Gradient of the result → of queries, keys and values."""
    q, k = queries(plan), keys(plan)
    inputs = (q, q, k, k, q, _log_sums(plan))
    flops = product_flops(q, k) * _PRODUCTS_BACKWARD
    tape.own(f"{_NAME}_backward", inputs, (q, k, k), flops=flops)


def _log_sums(plan: Plan) -> Operand:
    return tensor(FLOAT, *queries(plan).shape[:3])
