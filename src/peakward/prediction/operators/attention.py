"""Self-attention between its two projections: RoPE, the attention itself, and the heads' layout."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from peakward.prediction.memory import attention as in_memory
from peakward.prediction.memory.attention import SavedFused, SavedScores
from peakward.prediction.operators import attention_kernels, positions
from peakward.prediction.operators.heads import (
    Strides,
    dense,
    is_view,
    keys,
    new_keys,
    projected,
    queries,
    swapped,
)
from peakward.prediction.operators.plan import Kernel, Plan
from peakward.prediction.operators.tape import Tape, tensor
from peakward.prediction.operators.writer import Value, Writer

FORWARD: dict[Kernel, Callable[[Tape, Plan], Strides]] = {
    "naive": attention_kernels.naive_forward,
    "flash-for-cpu": attention_kernels.cpu_forward,
    "cudnn": attention_kernels.cudnn_forward,
    "flash": attention_kernels.flash_forward,
    "efficient": attention_kernels.efficient_forward,
    "math": attention_kernels.math_forward,
    "own-triton": attention_kernels.own_forward,
    "own-hopper": attention_kernels.own_forward,
    "own-decode": attention_kernels.own_to_cache,
}
"""Each gives the strides of its result, (batch, heads, seq, head_dim)."""
BACKWARD: dict[Kernel, Callable[[Tape, Plan], None]] = {
    "naive": attention_kernels.naive_backward,
    "flash-for-cpu": attention_kernels.cpu_backward,
    "cudnn": attention_kernels.cudnn_backward,
    "flash": attention_kernels.flash_backward,
    "efficient": attention_kernels.efficient_backward,
    "math": attention_kernels.math_backward,
    "own-triton": attention_kernels.own_backward,
    "own-hopper": attention_kernels.own_backward,
}


class SavedAttention(NamedTuple):
    """The tensors that autograd keeps; None where only time is asked for."""

    kept: SavedScores | SavedFused | None


class Mixed(NamedTuple):
    """Attention's result, the tensors that it keeps, and the locals that its caller holds on to."""

    saved: Any
    """For the backward pass."""
    result: Value
    held: tuple[Value, ...]


def forward(on: Writer, plan: Plan, packed: Value) -> Mixed:
    """Result of the first projection → (batch, seq, heads · head_dim)."""
    q, k = packed.viewed(queries(plan)), packed.viewed(new_keys(plan))
    if plan.turned_apart:
        q, k = (
            positions.rotation_forward(on, q, plan.stored),
            positions.rotation_forward(on, k, plan.stored),
        )
    elif plan.rotation is not None:
        q = k = packed = plan.rotation.forward(on, plan, packed.viewed(projected(plan)))
    if plan.cached and on.tape is not None:
        attention_kernels.write_to_cache(on.tape, plan)
    if plan.from_cache:
        # What was written to it is let go of; of queries made anew the projection too.
        k = packed = q if plan.turned_apart else packed
    strides = _strides(plan) if on.tape is None else FORWARD[plan.attention](on.tape, plan)
    saved, mixed = _in_memory(on, plan, q, k, packed)
    held = (packed, q, k, mixed)
    return Mixed(saved, side_by_side(on, mixed, strides, held), held)


def backward(on: Writer, plan: Plan, saved: SavedAttention, gradient: Value) -> Value:
    """Gradient of (batch, seq, heads · head_dim) → of what the first projection gave."""
    if on.tape is not None:
        BACKWARD[plan.attention](on.tape, plan)
    q, k, v = _in_memory_backward(on, plan, saved, gradient)
    if plan.turned_apart:
        k, q = (
            positions.rotation_backward(on, k, plan.stored),
            positions.rotation_backward(on, q, plan.stored),
        )
    joined = on.joined(q, k, v, along=1)
    together = side_by_side(on, joined, dense(joined.operand.shape), ())
    if plan.rotation is not None:
        turned: Value = plan.rotation.backward(on, plan, together.viewed(joined.operand))
        return turned.viewed(together.operand)
    return together


@lru_cache(maxsize=64)
def _strides(plan: Plan) -> Strides:
    """Strides of the result, where only memory is asked for: a timeline has many blocks of one plan."""
    return FORWARD[plan.attention](Tape(), plan)


def _in_memory(
    on: Writer, plan: Plan, q: Value, k: Value, packed: Value
) -> tuple[SavedAttention, Value]:
    """The tensors that the kernel keeps, and its result: (batch, heads, seq, head_dim)."""
    if on.line is None:
        return SavedAttention(None), Value(queries(plan))
    naive = plan.attention == "naive"
    run = in_memory.naive_forward if naive else in_memory.fused_forward
    saved, mixed = run(on.line, plan, q.there, k.there, packed.there)
    return SavedAttention(saved), Value(queries(plan), mixed)


def _in_memory_backward(
    on: Writer, plan: Plan, saved: SavedAttention, gradient: Value
) -> tuple[Value, Value, Value]:
    """Gradient of the result → of queries, keys and values."""
    made = (queries(plan), keys(plan), keys(plan))
    if on.line is None or saved.kept is None:
        q, k, v = map(Value, made)
    elif isinstance(saved.kept, SavedScores):
        places = in_memory.naive_backward(on.line, plan, saved.kept, gradient.there)
        q, k, v = map(Value, made, places)
    else:
        places = in_memory.fused_backward(on.line, plan, saved.kept, gradient.there)
        q, k, v = map(Value, made, places)
    return q, k, v


def side_by_side(on: Writer, x: Value, strides: Strides, held: tuple[Value, ...]) -> Value:
    """x (batch, heads, seq, head_dim) → (batch, seq, heads · head_dim), copied where its layout
    demands it."""
    batch, heads, seq, size = x.operand.shape
    rows = tensor(x.operand.dtype, batch, seq, heads, size)
    together = tensor(x.operand.dtype, batch, seq, heads * size)
    if not is_view(rows.shape, swapped(strides, 1, 2), together.shape):
        on.use(*held)
        (x,) = on.call("clone", (x.viewed(rows),), (rows,))
    return x.viewed(together)
