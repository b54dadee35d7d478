"""Self-attention in compiled code: a fused kernel, torch's or Peakward's own, or passes over the scores that
do all that lies between two products; and the kernels that turn queries and keys and lay the heads out."""

from typing import NamedTuple

from peakward.prediction.memory.attention import fused_scratch
from peakward.prediction.operators import attention_kernels
from peakward.prediction.operators.compiled.kernels import Kernels
from peakward.prediction.operators.heads import (
    Strides,
    dense,
    is_view,
    keys,
    matrices,
    projected,
    queries,
    swapped,
)
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import BOOL, FLOAT, Tape, tensor, transposed
from peakward.prediction.operators.writer import Value
from peakward.records.op_graph import Operand

_FORWARD = {
    "cudnn": attention_kernels.cudnn_forward,
    "flash": attention_kernels.flash_forward,
    "efficient": attention_kernels.efficient_forward,
    "own-triton": attention_kernels.own_forward,
    "own-hopper": attention_kernels.own_forward,
}
_BACKWARD = {
    "cudnn": attention_kernels.cudnn_backward,
    "flash": attention_kernels.flash_backward,
    "efficient": attention_kernels.efficient_backward,
    "own-triton": attention_kernels.own_backward,
    "own-hopper": attention_kernels.own_backward,
}
KERNELS = ("naive", *_FORWARD)
_MASK = ("arange", "bitwise_not", "ge", "sub")


class SavedAttention(NamedTuple):
    """The values that the backward pass reads."""

    packed: Value
    """Queries, keys and values; where the scores are in memory, values alone."""
    turned: tuple[Value, ...]
    """Queries and keys, where they were turned apart from the projection's result."""
    inner: tuple[Value, ...]

    @property
    def kept(self) -> tuple[Value, ...]:
        """All of it."""
        return (self.packed, *self.turned, *self.inner)


Attended = tuple[Value, ...]
"""The gradients of queries, keys and values, of which the first two are still turned."""


def forward(on: Kernels, plan: Plan, packed: Value) -> tuple[SavedAttention, Value]:
    """Result of the first projection → (batch, seq, heads · head_dim)."""
    turned: tuple[Value, ...] = ()
    if plan.rotation is None:
        names, angles = (*_casts(plan), "add", "cat", "mul", "sub"), _angles(plan)
        for part in _turned_at_once(plan):
            read = sum(each.n_bytes for each in (*part, *angles))
            reads = (packed, *map(Value, angles))
            turned += on.fused("pointwise", names, reads, part, bytes_read=read)
    else:
        packed = plan.rotation.forward(on, plan, packed.viewed(projected(plan)))
    if plan.attention == "naive":
        return _naive(on, plan, packed, turned or _laid_out(on, plan, packed))
    strides = _FORWARD[plan.attention](on.tape or Tape(), plan)
    made = on.for_memory((*turned, packed), (queries(plan), _sums(plan)))
    return SavedAttention(packed, turned, made), _side_by_side(on, made[0], strides)


def backward(on: Kernels, plan: Plan, saved: SavedAttention, gradient: Value) -> Attended:
    """Gradient of (batch, seq, heads · head_dim) → of queries, keys and values."""
    q, k = queries(plan), keys(plan)
    if plan.attention == "naive":
        return _naive_backward(on, plan, saved, gradient)
    if on.tape is not None:
        _BACKWARD[plan.attention](on.tape, plan)
    return on.for_memory((gradient, *saved.kept), (q, k, k), scratch=fused_scratch(plan))


def joined(on: Kernels, plan: Plan, attended: Attended) -> Value:
    """The gradient of the projection's result: the queries' and keys' turned back, and all three side by
    side."""
    angles, turned = tuple(map(Value, _angles(plan))), ("add", "cat", "mul", "neg")
    heads, rows = projected(plan), _projected(plan)
    if plan.rotation is not None:
        (side_by_side,) = on.fused("pointwise", ("cat",), attended, (heads,))
        back = plan.rotation.backward(on, plan, side_by_side)
        return on.fused("pointwise", ("clone",), (back,), (rows,))[0]
    if plan.stored != plan.compute:  # What is turned in another type is not joined in one go.
        *both, dv = attended
        back, given = (), (both,) if len(_turned_at_once(plan)) == 1 else ((each,) for each in both)
        for part, parts in zip(given, _turned_at_once(plan), strict=True):
            back += on.fused("pointwise", (*turned, "_to_copy"), (*part, *angles), parts)
        return on.fused("pointwise", ("cat", "clone"), (*back, dv), (rows,))[0]
    if plan.attention == "efficient":  # Its gradients lie row by row, as the projection's has to.
        return on.fused("pointwise", (*turned, "clone"), (*attended, *angles), (rows,))[0]
    (made,) = on.fused("pointwise", turned, (*attended, *angles), (heads,))
    return on.fused("pointwise", ("clone",), (made,), (rows,))[0]


def _naive(
    on: Kernels, plan: Plan, packed: Value, turned: tuple[Value, ...]
) -> tuple[SavedAttention, Value]:
    """With the scores in memory; narrowed weights are made again from them."""
    q, (by_query, by_key) = queries(plan), turned
    across = by_key.viewed(matrices(transposed(q)))
    scores = on.product("bmm", by_query.viewed(matrices(q)), across).viewed(_scores(plan))
    inner, weights = _softmax(on, plan, scores)
    (values,) = on.fused("pointwise", ("clone",), (packed.viewed(q),), (q,))
    of_matrices = weights.viewed(matrices(_scores(plan)))
    out = on.product("bmm", of_matrices, values.viewed(matrices(q))).viewed(q)
    saved = SavedAttention(values, turned, (*inner, weights))
    return saved, _side_by_side(on, out, dense(q.shape))


def _softmax(on: Kernels, plan: Plan, scores: Value) -> tuple[tuple[Value, ...], Value]:
    """Scaled, masked and narrowed; the mask is made in it where no backward pass needs it again. Gives
    what is kept beside the weights, and the weights."""
    narrowed, like = plan.compute != FLOAT, scores.operand
    names = ("_softmax", "div", "masked_fill", *(("_to_copy",) if narrowed else ()))
    if not plan.differentiated:
        every = (*names, *_MASK)
        return (), on.fused("inner_reduction", every, (scores,), (like,), over=scores)[0]
    (mask,) = on.fused("pointwise", _MASK, (), (tensor(BOOL, plan.seq, plan.seq),))
    if not narrowed:
        reads = (scores, mask)
        return (mask,), on.fused("inner_reduction", names, reads, (like,), over=scores)[0]
    row = tensor(FLOAT, plan.batch, plan.shape.n_heads, plan.seq, 1)
    weights, *rows = on.fused("inner_reduction", names, (scores, mask), (like, row, row))
    return (mask, scores, *rows), weights


def _naive_backward(on: Kernels, plan: Plan, saved: SavedAttention, gradient: Value) -> Attended:
    q, like, (mask, *scores, weights) = queries(plan), _scores(plan), saved.inner
    by_query, by_key = saved.turned
    (given,) = on.fused("pointwise", ("clone",), (gradient.viewed(q),), (q,))
    rows = given.viewed(matrices(q))
    dv = on.product("bmm", weights.viewed(matrices(transposed(like))), rows)
    across = saved.packed.viewed(matrices(transposed(q)))
    of_weights = on.product("bmm", rows, across).viewed(like)
    names, made_again = ["_softmax_backward_data", "div", "masked_fill"], scores or [weights]
    if scores:  # The weights were narrowed, and are made again from the scores.
        names += ["_softmax", "_to_copy"]
    reads = (of_weights, *made_again, mask)
    (of_scores,) = on.fused(
        "inner_reduction", names, reads, (like,), over=of_weights, held=(weights,)
    )
    square = of_scores.viewed(matrices(like))
    dk = on.product("bmm", by_query.viewed(matrices(transposed(q))), square)
    dq = on.product("bmm", square, by_key.viewed(matrices(q)))
    return tuple(each.viewed(q) for each in (dq, dk, dv))


def _laid_out(on: Kernels, plan: Plan, packed: Value) -> tuple[Value, ...]:
    """Queries and keys that lie as the projection laid them, each copied for the products."""
    q = queries(plan)
    return tuple(
        on.fused("pointwise", ("clone",), (packed.viewed(each),), (each,))[0]
        for each in (q, transposed(q))
    )


def _turned_at_once(plan: Plan) -> tuple[tuple[Operand, ...], ...]:
    """Queries and keys, in one kernel where they are alike."""
    q, k = queries(plan), keys(plan)
    return ((q, k),) if q == k else ((q,), (k,))


def _casts(plan: Plan) -> tuple[str, ...]:
    return ("_to_copy",) if plan.stored != plan.compute else ()


def _angles(plan: Plan) -> tuple[Operand, Operand]:
    """Cosines and sines."""
    half = tensor(plan.stored, plan.seq, plan.shape.head_dim // 2)
    return half, half


def _projected(plan: Plan) -> Operand:
    """Queries, keys and values side by side."""
    shape = plan.shape
    width = (shape.n_heads + 2 * shape.n_kv_heads) * shape.head_dim
    return tensor(plan.compute, plan.batch, plan.seq, width)


def _scores(plan: Plan) -> Operand:
    return tensor(plan.compute, plan.batch, plan.shape.n_heads, plan.seq, plan.seq)


def _sums(plan: Plan) -> Operand:
    return tensor(FLOAT, plan.batch, plan.shape.n_heads, plan.seq, 1)


def _side_by_side(on: Kernels, x: Value, strides: Strides) -> Value:
    """x (batch, heads, seq, head_dim) → (batch, seq, heads · head_dim)."""
    batch, heads, seq, size = x.operand.shape
    together = tensor(x.operand.dtype, batch, seq, heads * size)
    if is_view((batch, seq, heads, size), swapped(strides, 1, 2), together.shape):
        return x.viewed(together)
    return on.fused("pointwise", ("clone",), (x,), (together,))[0]
