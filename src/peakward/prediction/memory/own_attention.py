"""What the backward passes of Peakward's own attention allocate for the meantime.

Their blocks are those of `lab/ops/flash_attention/triton/settings.py` and `hopper/settings.py` for
compute capability 9.0: rows that sums are kept of come in whole blocks, heads in two powers of two.
"""

import math

from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import FLOAT
from peakward.records.op_graph import ITEM_BYTES

_SLOTS = 2 * 132
"""Programs that an H100 or H200 runs at once."""
_ROWS, _LEAST_PART, _MOST_PARTS = 64, 256, 256
_COUNTER_BYTES = 4
"""From which programs draw tiles."""


def scratch(plan: Plan) -> tuple[int, ...]:
    """Bytes of each tensor beside the gradients: the queries' gradient in fp32, and figures a row."""
    heads = plan.batch * plan.shape.n_heads * ITEM_BYTES[FLOAT]
    rows = _rows_in_blocks(plan)
    if plan.attention == "own-hopper":
        return (heads * rows, heads * rows, heads * rows * plan.shape.head_dim, _COUNTER_BYTES)
    return (heads * plan.seq, heads * rows * width(plan.shape.head_dim))


def parts_bytes(plan: Plan) -> tuple[int, ...]:
    """Of one token over a cache: what each part of the positions gave, in fp32, and its log-sum-exp."""
    n = n_parts(plan)
    rows = n * plan.batch * plan.shape.n_heads * ITEM_BYTES[FLOAT]
    return () if n == 1 else (rows * plan.shape.head_dim, rows)


def n_parts(plan: Plan) -> int:
    """Into which the positions are cut (`lab/ops/decode_attention/triton.py`, `settings_for`): the
    fewest that fill two programs a multiprocessor nearly as well as any number does."""
    shared = plan.shape.n_heads // plan.shape.n_kv_heads
    blocks = -(-shared // min(_ROWS, max(16, 1 << (shared - 1).bit_length())))
    n_groups = plan.batch * plan.shape.n_kv_heads * blocks
    most = max(1, min(_MOST_PARTS, plan.keys // max(_LEAST_PART, 16 * shared)))

    def fill(n: int) -> float:
        waves = n_groups * n / _SLOTS
        return waves / math.ceil(waves)

    fills = {n: fill(n) for n in range(1, most + 1)}
    return next(n for n, found in fills.items() if found >= 0.9 * max(fills.values()))


def width(head_dim: int) -> int:
    """Of a head in two parts, each a power of two, the second no narrower than a product takes."""
    first = 1 << (head_dim.bit_length() - 1)
    rest = head_dim - first
    return first if rest == 0 else first + max(16, 1 << (rest - 1).bit_length())


def block(plan: Plan) -> int:
    """Queries of one block."""
    head_dim, in_fp32 = plan.shape.head_dim, plan.compute == FLOAT
    if plan.attention == "own-hopper":
        return 128 if head_dim <= 64 else 64
    if in_fp32:
        return 32 if head_dim <= 64 else 16
    return 64 if head_dim <= 128 else 32


def _rows_in_blocks(plan: Plan) -> int:
    return -(-plan.seq // block(plan)) * block(plan)
