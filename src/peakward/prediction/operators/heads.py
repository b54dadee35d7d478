"""Queries, keys and values: their shapes and layouts, as matrices, and repeated for groups."""

import math

from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import FLOAT, Tape, of_type, tensor
from peakward.records.op_graph import Operand

# Where a reshape has to copy: torch gives a view whenever the strides allow one.

Strides = tuple[int, ...]
"""Elements from one index to the next, along each dimension."""


def dense(shape: tuple[int, ...]) -> Strides:
    """Strides of a row-major tensor."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def swapped(values: tuple[int, ...], i: int, j: int) -> tuple[int, ...]:
    """A shape or strides with two dimensions swapped."""
    changed = list(values)
    changed[i], changed[j] = changed[j], changed[i]
    return tuple(changed)


def by_rows(shape: tuple[int, ...]) -> Strides:
    """Strides of (batch, heads, seq, size) that lies in memory as (batch, seq, heads, size)."""
    return swapped(dense(swapped(shape, 1, 2)), 1, 2)


def is_view(shape: tuple[int, ...], strides: Strides, target: tuple[int, ...]) -> bool:
    """Whether a tensor can be seen as `target` without a copy.

    Runs of dimensions that lie behind one another in memory count as one; each must be the
    product of a run of the target's (`computeStride` of ATen's TensorUtils.cpp).
    """
    sizes = [size for size in target if size != 1]
    runs: list[int] = []
    inner = None
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 1:
            continue
        if inner is not None and stride == inner:
            runs[-1] *= size
        else:
            runs.append(size)
        inner = stride * size
    for run in runs:
        filled = 1
        while sizes and filled < run:
            filled *= sizes.pop()
        if filled != run:
            return False
    return not sizes


# Queries, keys and values.


def queries(plan: Plan) -> Operand:
    """(batch, heads, seq, head_dim) in the compute type."""
    return _heads(plan, plan.shape.n_heads)


def new_keys(plan: Plan) -> Operand:
    """(batch, kv_heads, seq, head_dim) in the compute type, of the tokens at hand; values also."""
    return _heads(plan, plan.shape.n_kv_heads)


def keys(plan: Plan) -> Operand:
    """(batch, kv_heads, keys, head_dim), which attention reads; values also."""
    return tensor(plan.compute, plan.batch, plan.shape.n_kv_heads, plan.keys, plan.shape.head_dim)


def held_keys(plan: Plan) -> Operand:
    """As `keys`, in the type that the cache keeps."""
    k = keys(plan)
    return k if plan.narrow_cache is None else of_type(k, plan.narrow_cache.dtype)


def scales(plan: Plan) -> tuple[Operand, ...]:
    """Those that attention reads of keys and of values, (batch, kv_heads, keys), where a cache has them."""
    if plan.narrow_cache is None:
        return ()
    each = tensor(FLOAT, *keys(plan).shape[:-1])
    return each, each


def all_keys(plan: Plan) -> Operand:
    """(batch, heads, keys, head_dim): as `keys`, once for every query head; values also."""
    return tensor(plan.compute, plan.batch, plan.shape.n_heads, plan.keys, plan.shape.head_dim)


def projected(plan: Plan) -> Operand:
    """(batch, heads + 2 · kv_heads, seq, head_dim): queries, keys and values of one projection."""
    return _heads(plan, plan.shape.n_heads + 2 * plan.shape.n_kv_heads)


def like_queries(plan: Plan) -> Strides:
    """Strides of a new tensor in the queries' layout: head by head where RoPE made them anew, else row by
    row, as the projection gave them."""
    shape = queries(plan).shape
    return dense(shape) if plan.turned_apart else by_rows(shape)


def packed(plan: Plan) -> Strides:
    """Strides of queries, keys or values where the projection that makes all three left them."""
    shape = plan.shape
    heads = shape.n_heads + 2 * shape.n_kv_heads
    return swapped(dense((plan.batch, plan.seq, heads, shape.head_dim)), 1, 2)


def product_flops(q: Operand, k: Operand) -> int:
    """FLOPs of one product as large as the scores', by the queries and keys that the kernel gets."""
    return 2 * math.prod(q.shape) * k.shape[2]


def matrices(x: Operand) -> Operand:
    """(batch, heads, m, n) → (batch · heads, m, n)."""
    return tensor(x.dtype, math.prod(x.shape[:-2]), *x.shape[-2:])


def as_batch(tape: Tape, x: Operand, strides: Strides) -> None:
    """The copy, if its layout demands one, by which x becomes `matrices`."""
    if not is_view(x.shape, strides, matrices(x).shape):
        tape.copied(x)


def repeated(tape: Tape, plan: Plan, dtype: str) -> None:
    """Keys or values of `dtype`, once more for each query head of their group."""
    grouped = _grouped(plan, dtype)
    tape.copied(grouped, stored_bytes=grouped.n_bytes // grouped.shape[2])


def summed(tape: Tape, plan: Plan, dtype: str) -> None:
    """The gradient of what was repeated: over each group."""
    grouped = _grouped(plan, dtype)
    batch, n_kv_heads, _, *rest = grouped.shape
    tape.reduced("sum", grouped, batch, n_kv_heads, 1, *rest)


def _heads(plan: Plan, n: int) -> Operand:
    return tensor(plan.compute, plan.batch, n, plan.seq, plan.shape.head_dim)


def _grouped(plan: Plan, dtype: str) -> Operand:
    shape = plan.shape
    groups = shape.n_heads // shape.n_kv_heads
    return tensor(dtype, plan.batch, shape.n_kv_heads, groups, plan.keys, shape.head_dim)
