"""Queries, keys and values: their shapes and layouts, as matrices, and repeated for groups."""

import math

from peakward.prediction.operators.layout import Strides, by_rows, dense, is_view, swapped
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import Tape, tensor
from peakward.records.op_graph import Operand


def queries(plan: Plan) -> Operand:
    """(batch, heads, seq, head_dim) in the compute type."""
    return _heads(plan, plan.shape.n_heads)


def new_keys(plan: Plan) -> Operand:
    """(batch, kv_heads, seq, head_dim) in the compute type, of the tokens at hand; values also."""
    return _heads(plan, plan.shape.n_kv_heads)


def keys(plan: Plan) -> Operand:
    """(batch, kv_heads, keys, head_dim), which attention reads; values also."""
    return tensor(plan.compute, plan.batch, plan.shape.n_kv_heads, plan.keys, plan.shape.head_dim)


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
