"""The tensors of attention over whole score matrices (`kernels/ops/attention/reference.py`)."""

from typing import NamedTuple

from peakward.prediction.memory.timeline import Timeline
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import BFLOAT, FLOAT, HALF, INT
from peakward.records.op_graph import ITEM_BYTES

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


def forward(line: Timeline, plan: Plan, q: int, k: int, packed: int) -> tuple[SavedScores, int]:
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


def backward(line: Timeline, plan: Plan, saved: SavedScores, gradient: int) -> list[int]:
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
