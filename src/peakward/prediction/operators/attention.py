"""Self-attention between its two projections: RoPE, the attention itself, and the heads' layout."""

from collections.abc import Callable

from peakward.prediction.operators import (
    cpu_attention,
    cuda_attention,
    math_attention,
    naive_attention,
    own_attention,
    rotation,
)
from peakward.prediction.operators.heads import keys, new_keys, projected, queries
from peakward.prediction.operators.layout import Strides, dense, is_view, swapped
from peakward.prediction.operators.plan import Kernel, Plan
from peakward.prediction.operators.tape import Tape, tensor
from peakward.records.op_graph import Operand

_FORWARD: dict[Kernel, Callable[[Tape, Plan], Strides]] = {
    "naive": naive_attention.forward,
    "flash-for-cpu": cpu_attention.forward,
    "cudnn": cuda_attention.cudnn_forward,
    "flash": cuda_attention.flash_forward,
    "efficient": cuda_attention.efficient_forward,
    "math": math_attention.forward,
    "own-triton": own_attention.forward,
    "own-hopper": own_attention.forward,
    "own-decode": own_attention.to_cache,
}
"""Each gives the strides of its result, (batch, heads, seq, head_dim)."""
_BACKWARD: dict[Kernel, Callable[[Tape, Plan], None]] = {
    "naive": naive_attention.backward,
    "flash-for-cpu": cpu_attention.backward,
    "cudnn": cuda_attention.cudnn_backward,
    "flash": cuda_attention.flash_backward,
    "efficient": cuda_attention.efficient_backward,
    "math": math_attention.backward,
    "own-triton": own_attention.backward,
    "own-hopper": own_attention.backward,
}


def forward(tape: Tape, plan: Plan) -> Operand:
    """What the first projection gave → (batch, seq, heads · head_dim)."""
    if plan.turned_apart:
        for each in (queries(plan), new_keys(plan)):
            rotation.forward(tape, each, plan.stored)
    elif plan.shape.positions == "rope":
        in_place = not plan.differentiated
        rotation.own_forward(tape, projected(plan), plan.stored, in_place=in_place)
    if plan.cached:
        _write_to_cache(tape, new_keys(plan))
    strides = _FORWARD[plan.attention](tape, plan)
    return _side_by_side(tape, queries(plan), strides)


def _write_to_cache(tape: Tape, new: Operand) -> None:
    for _ in ("keys", "values"):
        tape.call("copy_", (new, new), (new,), bytes_read=new.n_bytes)


def backward(tape: Tape, plan: Plan) -> Operand:
    """Gradient of (batch, seq, heads · head_dim) → of what the first projection gave."""
    q, k = queries(plan), keys(plan)
    _BACKWARD[plan.attention](tape, plan)
    if plan.turned_apart:
        for each in (k, q):
            rotation.backward(tape, each, plan.stored)
    joined = tape.joined(q, k, k, along=1)
    together = _side_by_side(tape, joined, dense(joined.shape))
    if plan.shape.positions == "rope" and not plan.turned_apart:
        rotation.own_backward(tape, joined, plan.stored)
    return together


def _side_by_side(tape: Tape, x: Operand, strides: Strides) -> Operand:
    """x (batch, heads, seq, head_dim) → (batch, seq, heads · head_dim), copied where its layout
    demands it."""
    batch, heads, seq, size = x.shape
    rows = tensor(x.dtype, batch, seq, heads, size)
    together = tensor(x.dtype, batch, seq, heads * size)
    if not is_view(rows.shape, swapped(strides, 1, 2), together.shape):
        tape.copied(rows)
    return together
