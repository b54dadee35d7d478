"""The tensors of attention: over whole score matrices, or as one kernel."""

import math
from typing import NamedTuple

from peakward.prediction.memory.timeline import Timeline
from peakward.prediction.operators.plan import OWN_KERNELS, Plan
from peakward.prediction.operators.tape import BFLOAT, FLOAT, HALF, INT
from peakward.records.op_graph import ITEM_BYTES

# The tensors of attention over whole score matrices (`kernels/ops/attention/reference.py`).

SOFTMAX_TEMPORARIES = 1
"""Its backward multiplies gradient and result into a tensor of its own first
(`softmax_backward_cuda_out` in ATen/native/cuda/SoftMax.cu); a CPU's does not."""


class SavedScores(NamedTuple):
    """Operands of both products, the mask and the softmax's result."""

    q: int
    k: int
    v: int
    forbidden: tuple[int, ...]
    softmax: int
    weights: int


def naive_forward(
    line: Timeline, plan: Plan, q: int, k: int, packed: int
) -> tuple[SavedScores, int]:
    """Queries and keys, dense or inside `packed`, and values inside it → (batch, heads, seq,
    head_dim)."""
    heads, square = _heads(plan), _square(plan)
    if not plan.turned_apart and (plan.seq > 1 or plan.batch > 1):
        q = line.op(heads, packed)
    v = packed
    repeated: tuple[int, ...] = ()
    if plan.shape.n_kv_heads < plan.shape.n_heads:
        n_bytes = heads // plan.seq * plan.keys
        k, v = repeated = line.op(n_bytes, k), line.op(n_bytes, packed)
    elif not plan.turned_apart and not plan.from_cache:
        k = line.op(heads, packed)
    score = ITEM_BYTES[plan.compute]
    (product,) = line.dear((square * score,), q, k)
    scores = line.op(square * score, product)
    if plan.shape.positions == "alibi":
        score = ITEM_BYTES[FLOAT]
        scores = line.op(square * score, scores)
    forbidden: tuple[int, ...] = ()
    masked = scores
    if plan.masked:
        forbidden = (causal_mask(line, plan),)
        masked = line.op(square * score, scores, *forbidden)
    softmax = _softmax(line, plan, masked, score)
    weights = softmax
    if plan.compute != FLOAT:
        weights = line.op(square * ITEM_BYTES[plan.compute], softmax)
    if v == packed and plan.batch > 1 and not plan.from_cache:
        v = line.op(heads, packed)  # Heads lie inside each token's row: no batch of matrices.
    (mixed,) = line.dear((heads,), weights, v)
    line.use(masked, softmax, *repeated)  # Locals of `attention` until it returns.
    return SavedScores(q, k, v, forbidden, softmax, weights), mixed


def naive_backward(line: Timeline, plan: Plan, saved: SavedScores, gradient: int) -> list[int]:
    """Gradient of the result, heads side by side → of queries, keys and values."""
    heads, square = _heads(plan), _square(plan)
    size = ITEM_BYTES[plan.compute]
    copied = line.op(heads, gradient)
    line.saved(saved.q, saved.k, saved.v, *saved.forbidden, saved.softmax, saved.weights)
    weights = line.op(square * size, copied, saved.v, saved.weights)
    values = line.op(heads, copied, saved.weights, saved.v)
    line.use(weights)
    wide = square * ITEM_BYTES[FLOAT]
    if plan.compute != FLOAT:
        weights = line.op(wide, weights)
    biased = plan.shape.positions == "alibi"
    # Where the forward kernel took scores of fp16, the backward one gives their gradient in fp16.
    made = square * size if plan.compute == HALF and not biased else wide
    *_, scores = line.ops((*(wide,) * SOFTMAX_TEMPORARIES, made), weights, saved.softmax)
    if plan.compute == BFLOAT and not biased:
        scores = line.op(square * size, scores)
    scores = line.op(wide if biased else square * size, scores, *saved.forbidden)
    if plan.compute != FLOAT and biased:
        scores = line.op(square * size, scores)
    scores = line.op(square * size, scores)
    q = line.op(heads, scores, saved.k, saved.q)
    k = line.op(heads, scores, saved.q)
    line.use(q)
    if plan.shape.n_kv_heads < plan.shape.n_heads:
        few = heads * plan.shape.n_kv_heads // plan.shape.n_heads
        k, values = line.op(few, k), line.op(few, values)
    return [q, k, values]


def causal_mask(line: Timeline, plan: Plan) -> int:
    """(seq, seq) of bool, and its complement, which is given back."""
    square = plan.seq**2
    distance = line.op(square * ITEM_BYTES[INT])
    mask = line.op(square, distance)
    if plan.shape.window is not None:
        within = line.op(square, distance)
        mask = line.op(square, mask, within)
        line.use(distance)
    return line.op(square, mask)


def _softmax(line: Timeline, plan: Plan, masked: int, score_bytes: int) -> int:
    """In fp32: of bf16 on a copy, of fp16 inside the kernel (ATen/native/SoftMax.cpp)."""
    wide = _square(plan) * ITEM_BYTES[FLOAT]
    if plan.compute == BFLOAT and score_bytes < ITEM_BYTES[FLOAT]:
        return line.op(wide, line.op(wide, masked))
    return line.op(wide, masked)


def _heads(plan: Plan) -> int:
    return plan.tokens * plan.shape.n_heads * plan.shape.head_dim * ITEM_BYTES[plan.compute]


def _square(plan: Plan) -> int:
    return plan.batch * plan.shape.n_heads * plan.seq * plan.keys


# The scratch that the backward passes of Peakward's own attention allocate.
#
# The portable kernels keep a figure a row; those for Hopper add dq up in fp32, in whole tiles of
# queries (`kernels/ops/flash_attention/hopper/settings.py`), and have gradients of keys and values of each
# head apart where several share them.

_MULTIPROCESSORS, _SHARED_BYTES = 132, 227 << 10
"""Those of an H100 or H200, and the memory that programs of one share."""
_ROWS, _LEAST_PART, _MOST_PARTS = 64, 128, 256
_COUNTER_BYTES = 4
"""From which programs draw tiles."""


def own_scratch(plan: Plan) -> tuple[int, ...]:
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
    slots = _resident(plan, shared) * _MULTIPROCESSORS

    def fill(n: int) -> float:
        waves = n_groups * n / slots
        return waves / math.ceil(waves)

    fills = {n: fill(n) for n in range(1, most + 1)}
    return next(n for n, found in fills.items() if found >= 0.9 * max(fills.values()))


def _resident(plan: Plan, n_rows: int) -> int:
    """The programs of a multiprocessor: as many as its memory has blocks of keys and values for, of which two
    are on their way."""
    kept = plan.narrow_cache
    row_bytes = 1 << (plan.shape.head_dim - 1).bit_length()
    row_bytes *= ITEM_BYTES[plan.compute if kept is None else kept.dtype]
    reserved = (12 << 10) * -(-min(n_rows, _ROWS) // 16)
    block = max(32, min(128, ((32 if kept is None else 8) << 10) // row_bytes))

    def stages(block: int) -> int:
        return min(3, 1 + ((_SHARED_BYTES - reserved) // (block * row_bytes) - 1) // 2)

    while block > 32 and stages(block) < 3:
        block //= 2
    taken = reserved + block * row_bytes * (2 * stages(block) - 1)
    return max(1, min(3, _SHARED_BYTES // taken))


def _rows_in_blocks(plan: Plan) -> int:
    """Rows in whole tiles of queries, as the Hopper kernels have them."""
    queries = 64 if plan.shape.head_dim == 128 else 128
    return -(-plan.seq // queries) * queries


# The tensors of attention as one kernel, torch's or Peakward's own.


class SavedFused(NamedTuple):
    """The kernel's operands and results."""

    q: int
    k: int
    v: int
    out: int
    log_sum_exp: int
    mask: tuple[int, ...]


def fused_forward(
    line: Timeline, plan: Plan, q: int, k: int, packed: int
) -> tuple[SavedFused, int]:
    """Queries and keys, dense or inside `packed`, and values inside it → (batch, heads, seq,
    head_dim)."""
    rows = plan.tokens * plan.shape.n_heads
    mask = _mask(line, plan)
    results = (rows * plan.shape.head_dim * ITEM_BYTES[plan.compute], rows * ITEM_BYTES[FLOAT])
    if plan.attention == "own-decode":
        parts = parts_bytes(plan)
        out, sums = line.ops((*results, *parts), q, k, packed)[:2]
    else:
        out, sums = line.dear(results, q, k, packed, *mask)
    return SavedFused(q, k, packed, out, sums, mask), out


def fused_backward(line: Timeline, plan: Plan, saved: SavedFused, gradient: int) -> list[int]:
    """Gradient of the result → of queries, keys and values."""
    shape, size = plan.shape, ITEM_BYTES[plan.compute]
    rows, few = plan.tokens * shape.n_heads, plan.tokens * shape.n_kv_heads
    q, kv = (n * shape.head_dim * size for n in (rows, few))
    kept = line.saved(saved.q, saved.k, saved.v, saved.out, saved.log_sum_exp, *saved.mask)
    return list(line.ops((q, kv, kv, *fused_scratch(plan)), gradient, *kept)[:3])


def fused_scratch(plan: Plan) -> tuple[int, ...]:
    """Bytes of what the backward pass has for the meantime: it sums the queries' gradient in fp32, and
    has a figure a row beside it (flash, Dao 2023, algorithm 2)."""
    if plan.attention in OWN_KERNELS:
        return own_scratch(plan)
    rows = plan.tokens * plan.shape.n_heads * ITEM_BYTES[FLOAT]
    return (rows,) if plan.compute == FLOAT else (rows, rows * plan.shape.head_dim)


def _mask(line: Timeline, plan: Plan) -> tuple[int, ...]:
    """Where the mask is not causal alone: added to the scores, in their type."""
    window, square = plan.shape.window, plan.seq * plan.keys * ITEM_BYTES[plan.compute]
    if plan.shape.positions == "alibi":
        forbidden = (causal_mask(line, plan),) if plan.masked else ()
        return (line.op(square * plan.shape.n_heads, *forbidden),)
    if window is not None and window < plan.seq:
        return (line.op(square, causal_mask(line, plan)),)
    return ()
