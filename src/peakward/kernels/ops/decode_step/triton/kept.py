"""Keys and values as a cache holds them: in the type of activations, or in int8 with a scale each.

A head's scale is known when all of its elements are, and the programs of the projection have a part of a head
each. So attention rounds and writes the new keys and values: the program whose piece they lie in has whole
heads.
"""

import triton
import triton.language as tl

from peakward.kernels.ops.cache_write.triton import in_bytes
from peakward.kernels.ops.decode_attention.triton.narrow import (
    product_of_digits,
    twice,
    widened_bytes,
)
from peakward.kernels.ops.decode_step.triton.stored import place_of

LARGEST: tl.constexpr = tl.constexpr(127)
LEAST_ROWS: tl.constexpr = tl.constexpr(16)
"""A product has at least as many: fewer queries are in it twice."""


@triton.jit
def written(  # type: ignore[no-untyped-def]
    new_ptr,
    k_ptr,
    v_ptr,
    k_scale_ptr,
    v_scale_ptr,
    table_ptr,
    room,
    sequence,
    kv,
    first,
    low,
    high,
    NEW: tl.constexpr,
    NEWS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
):
    """Rounds and writes keys and values of head `kv` of those of the NEW tokens, from position `first` on,
    that stand from `low` to `high`. Rows of new_ptr have HEADS heads of queries, then the keys, then the
    values; NEWS is a power of two."""
    token = tl.arange(0, NEWS)
    position = first + token
    is_new = (token < NEW) & (position >= low) & (position < high)
    dim = tl.arange(0, BLOCK_DIM)
    inside = is_new[:, None] & (dim < HEAD_DIM)[None, :]
    key = (sequence * NEW + token) * (HEADS + 2 * KV_HEADS) + HEADS + kv
    new = new_ptr + key[:, None] * HEAD_DIM + dim[None, :]
    k = tl.load(new, mask=inside, other=0.0, cache_modifier=".cg")
    v = tl.load(new + KV_HEADS * HEAD_DIM, mask=inside, other=0.0, cache_modifier=".cg")
    place = place_of(table_ptr, room, sequence, KV_HEADS, kv, position, is_new, PAGE_SIZE)
    at = place[:, None] * HEAD_DIM + dim[None, :]
    k, k_scale = in_bytes(k, LARGEST, k_ptr.dtype.element_ty)
    tl.store(k_ptr + at, k, mask=inside)
    tl.store(k_scale_ptr + place, k_scale, mask=is_new)
    v, v_scale = in_bytes(v, LARGEST, v_ptr.dtype.element_ty)
    tl.store(v_ptr + at, v, mask=inside)
    tl.store(v_scale_ptr + place, v_scale, mask=is_new)


@triton.jit
def loaded(  # type: ignore[no-untyped-def]
    k_ptr,
    v_ptr,
    k_scale_ptr,
    v_scale_ptr,
    place,
    is_held,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    """A block of keys (positions, BLOCK_DIM), of values, in int8 as pairs (positions, BLOCK_DIM / 2) of
    int16, and their scales (positions,), where there are any."""
    dim = tl.arange(0, BLOCK_DIM)
    at = place[:, None] * HEAD_DIM + dim[None, :]
    there = is_held[:, None] & (dim < HEAD_DIM)[None, :]
    k = tl.load(k_ptr + at, mask=there, other=0, cache_modifier=".cg")
    k_scale, v_scale = 1.0, 1.0
    if k_scale_ptr is None:
        v = tl.load(v_ptr + at, mask=there, other=0, cache_modifier=".cg")
    else:
        # Bytes of a transposed operand go one by one, pairs many in one instruction.
        pair = tl.arange(0, BLOCK_DIM // 2)
        at = place[:, None] * (HEAD_DIM // 2) + pair[None, :]
        there = is_held[:, None] & (pair < HEAD_DIM // 2)[None, :]
        pairs = v_ptr.to(tl.pointer_type(tl.int16), bitcast=True)
        v = tl.load(pairs + at, mask=there, other=0, cache_modifier=".cg")
        k_scale = tl.load(k_scale_ptr + place, mask=is_held, other=0.0, cache_modifier=".cg")
        v_scale = tl.load(v_scale_ptr + place, mask=is_held, other=0.0, cache_modifier=".cg")
    return k, v, k_scale, v_scale


@triton.jit
def scored(q, factor, k, k_scale):  # type: ignore[no-untyped-def]
    """The scores (members, positions) of queries (members, dims), or of their digits, and a block of keys:
    times the queries' factor, of digits (members,)."""
    if k.dtype == tl.int8:
        score = tl.trans(product_of_digits(k, q) * k_scale[:, None] * factor[None, :])
    else:
        score = tl.dot(q, tl.trans(k), input_precision="ieee") * factor
    return score


@triton.jit
def weighed(weight, shrink, acc, odd, v, v_scale, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sums so far times `shrink` (members,), and a block of values by their weights (members, positions):
    of all dimensions, or beside values in int8 of even ones and of odd ones."""
    shrink = shrink[:, None]
    if v.dtype == tl.int16:
        v_even, v_odd = widened_bytes(v, tl.int8, dtype)
        weight = (weight * v_scale[None, :]).to(dtype)
        if weight.shape[0] < LEAST_ROWS:
            weight, shrink = twice(weight), twice(shrink)
        acc = tl.dot(weight, v_even, acc * shrink, input_precision="ieee")
        odd = tl.dot(weight, v_odd, odd * shrink, input_precision="ieee")
    else:
        acc = tl.dot(weight.to(dtype), v, acc * shrink, input_precision="ieee")
    return acc, odd
