"""The tensors of attention as one kernel, torch's or Peakward's own."""

from typing import NamedTuple

from peakward.prediction.memory import naive_attention, own_attention
from peakward.prediction.memory.timeline import Timeline
from peakward.prediction.operators.plan import OWN_KERNELS, Plan
from peakward.prediction.operators.tape import FLOAT
from peakward.records.op_graph import ITEM_BYTES


class SavedFused(NamedTuple):
    """The kernel's operands and results."""

    q: int
    k: int
    v: int
    out: int
    log_sum_exp: int
    mask: tuple[int, ...]


def forward(line: Timeline, plan: Plan, q: int, k: int, packed: int) -> tuple[SavedFused, int]:
    """Queries and keys, dense or inside `packed`, and values inside it → (batch, heads, seq,
    head_dim)."""
    rows = plan.tokens * plan.shape.n_heads
    mask = _mask(line, plan)
    results = (rows * plan.shape.head_dim * ITEM_BYTES[plan.compute], rows * ITEM_BYTES[FLOAT])
    if plan.attention == "own-decode":
        parts = own_attention.parts_bytes(plan)
        out, sums = line.ops((*results, *parts), q, k, packed)[:2]
    else:
        out, sums = line.dear(results, q, k, packed, *mask)
    return SavedFused(q, k, packed, out, sums, mask), out


def backward(line: Timeline, plan: Plan, saved: SavedFused, gradient: int) -> list[int]:
    """Gradient of the result → of queries, keys and values."""
    shape, size = plan.shape, ITEM_BYTES[plan.compute]
    rows, few = plan.tokens * shape.n_heads, plan.tokens * shape.n_kv_heads
    q, kv = (n * shape.head_dim * size for n in (rows, few))
    kept = line.saved(saved.q, saved.k, saved.v, saved.out, saved.log_sum_exp, *saved.mask)
    return list(line.ops((q, kv, kv, *scratch(plan)), gradient, *kept)[:3])


def scratch(plan: Plan) -> tuple[int, ...]:
    """Bytes of what the backward pass has for the meantime: it sums the queries' gradient in fp32, and
    has a figure a row beside it (flash, Dao 2023, algorithm 2)."""
    if plan.attention in OWN_KERNELS:
        return own_attention.scratch(plan)
    rows = plan.tokens * plan.shape.n_heads * ITEM_BYTES[FLOAT]
    return (rows,) if plan.compute == FLOAT else (rows, rows * plan.shape.head_dim)


def _mask(line: Timeline, plan: Plan) -> tuple[int, ...]:
    """Where the mask is not causal alone: added to the scores, in their type."""
    window, square = plan.shape.window, plan.seq * plan.keys * ITEM_BYTES[plan.compute]
    if plan.shape.positions == "alibi":
        forbidden = (naive_attention.causal_mask(line, plan),) if plan.masked else ()
        return (line.op(square * plan.shape.n_heads, *forbidden),)
    if window is not None and window < plan.seq:
        return (line.op(square, naive_attention.causal_mask(line, plan)),)
    return ()
