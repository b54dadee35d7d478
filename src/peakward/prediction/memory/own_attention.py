"""The scratch that the backward passes of Peakward's own attention allocate.

The portable kernels keep a figure a row; those for Hopper add dq up in fp32, in whole tiles of
queries (`kernels/ops/flash_attention/hopper/settings.py`), and have gradients of keys and values of each head
apart where several share them.
"""

import math

from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import FLOAT
from peakward.records.op_graph import ITEM_BYTES

_SLOTS = 132
"""Programs that an H100 or H200 runs at once, one a multiprocessor."""
_ROWS, _LEAST_PART, _MOST_PARTS = 64, 256, 256
_COUNTER_BYTES = 4
"""From which programs draw tiles."""


def scratch(plan: Plan) -> tuple[int, ...]:
    """Bytes of each tensor beside the gradients: shares of dk and dv, dq's sums, and figures a row."""
    heads = plan.batch * plan.shape.n_heads * ITEM_BYTES[FLOAT]
    if plan.attention != "own-hopper":
        return (heads * plan.seq,)
    rows = _rows_in_blocks(plan)
    shares: tuple[int, ...] = ()
    if plan.shape.n_kv_heads < plan.shape.n_heads:
        share = plan.tokens * plan.shape.n_heads * plan.shape.head_dim * ITEM_BYTES[plan.compute]
        shares = (share, share)
    sums = heads * rows * plan.shape.head_dim
    return (*shares, sums, _COUNTER_BYTES, heads * rows, heads * rows)


def parts_bytes(plan: Plan) -> tuple[int, ...]:
    """Bytes of one token over a cache: the result of each part of the positions, in fp32, and its log-sum-
    exp."""
    n = n_parts(plan)
    rows = n * plan.batch * plan.shape.n_heads * ITEM_BYTES[FLOAT]
    return () if n == 1 else (rows * plan.shape.head_dim, rows)


def n_parts(plan: Plan) -> int:
    """Into which the positions are cut (`kernels/ops/decode_attention/triton/settings.py`): the
    fewest that fill the multiprocessors nearly as well as any number does."""
    shared = plan.shape.n_heads // plan.shape.n_kv_heads
    blocks = -(-shared // min(_ROWS, max(16, 1 << (shared - 1).bit_length())))
    n_groups = plan.batch * plan.shape.n_kv_heads * blocks
    most = max(1, min(_MOST_PARTS, plan.keys // max(_LEAST_PART, 16 * shared)))

    def fill(n: int) -> float:
        waves = n_groups * n / _SLOTS
        return waves / math.ceil(waves)

    fills = {n: fill(n) for n in range(1, most + 1)}
    return next(n for n, found in fills.items() if found >= 0.9 * max(fills.values()))


def _rows_in_blocks(plan: Plan) -> int:
    """Rows in whole tiles of queries, as the Hopper kernels have them."""
    queries = 64 if plan.shape.head_dim == 128 else 128
    return -(-plan.seq // queries) * queries
