"""Self-attention in compiled code: a fused kernel, torch's or Peakward's own, or the passes over the
scores that are left of it, between the kernels that turn the queries and keys and lay the heads out."""

from peakward.levers.axis import Work
from peakward.prediction.operators import cuda_attention, own_attention
from peakward.prediction.operators.compiled import naive_attention
from peakward.prediction.operators.heads import keys, projected, queries
from peakward.prediction.operators.layout import Strides, is_view, swapped
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import Tape, tensor
from peakward.prediction.operators.writer import Value, Writer
from peakward.records.op_graph import Operand

_FORWARD = {
    "naive": naive_attention.forward,
    "cudnn": cuda_attention.cudnn_forward,
    "flash": cuda_attention.flash_forward,
    "efficient": cuda_attention.efficient_forward,
    "own-triton": own_attention.forward,
    "own-hopper": own_attention.forward,
}
_BACKWARD = {
    "naive": naive_attention.backward,
    "cudnn": cuda_attention.cudnn_backward,
    "flash": cuda_attention.flash_backward,
    "efficient": cuda_attention.efficient_backward,
    "own-triton": own_attention.backward,
    "own-hopper": own_attention.backward,
}
KERNELS = tuple(_FORWARD)


def forward(tape: Tape, plan: Plan) -> Operand:
    """Result of the first projection → (batch, seq, heads · head_dim)."""
    if plan.rotation is None:
        angles = _angles(plan)
        for part in _turned_at_once(plan):
            names = (*_casts(plan), "add", "cat", "mul", "sub")
            read = sum(each.n_bytes for each in (*part, *angles))
            tape.fused("pointwise", names, (_projected(plan), *angles), part, bytes_read=read)
    else:
        plan.rotation.forward(Writer(tape), plan, Value(projected(plan)))
    strides = _FORWARD[plan.attention](tape, plan)
    return _side_by_side(tape, queries(plan), strides)


def backward(tape: Tape, plan: Plan) -> Operand:
    """Gradient of (batch, seq, heads · head_dim) → of what the first projection gave."""
    q, k = queries(plan), keys(plan)
    _BACKWARD[plan.attention](tape, plan)
    if plan.rotation is not None:
        return _turned_back_at_once(tape, plan, plan.rotation)
    turned, rows = ("add", "cat", "mul", "neg"), _projected(plan)
    if plan.stored != plan.compute:  # What is turned in another type is not joined in one go.
        for part in _turned_at_once(plan):
            tape.fused("pointwise", (*turned, "_to_copy"), (*part, *_angles(plan)), part)
        tape.fused("pointwise", ("cat", "clone"), (q, k, k), (rows,))
        return rows
    inputs = (q, k, k, *_angles(plan))
    if plan.attention == "efficient":  # Its gradients lie row by row, as the projection's has to.
        tape.fused("pointwise", (*turned, "clone"), inputs, (rows,))
        return rows
    tape.fused("pointwise", turned, inputs, (projected(plan),))
    tape.fused("pointwise", ("clone",), (projected(plan),), (rows,))
    return rows


def _turned_back_at_once(tape: Tape, plan: Plan, rotation: Work) -> Operand:
    """Gradients of queries, keys and values → of the projection's result, by a lever's kernel."""
    k, joined = keys(plan), projected(plan)
    tape.fused("pointwise", ("cat",), (queries(plan), k, k), (joined,))
    rotation.backward(Writer(tape), plan, Value(joined))
    tape.fused("pointwise", ("clone",), (joined,), (_projected(plan),))
    return _projected(plan)


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


def _side_by_side(tape: Tape, x: Operand, strides: Strides) -> Operand:
    """x (batch, heads, seq, head_dim) → (batch, seq, heads · head_dim)."""
    batch, heads, seq, size = x.shape
    together = tensor(x.dtype, batch, seq, heads * size)
    if not is_view((batch, seq, heads, size), swapped(strides, 1, 2), together.shape):
        tape.fused("pointwise", ("clone",), (x,), (together,))
    return together
