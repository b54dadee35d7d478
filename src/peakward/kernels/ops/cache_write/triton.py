"""One program for each new token and head: its key and its value, rounded and written."""

import triton
import triton.language as tl
from torch import Tensor, uint8
from torch import int32 as torch_int32

from peakward.kernels.ops.decode_attention.reference import LARGEST, LARGEST_STEP, group_size
from peakward.kernels.ops.recording import launch

ROUNDS: tl.constexpr = tl.constexpr(1.5 * 2**23)
"""Added to a number and taken off again: what is left is whole, ties to even, as torch.round has it."""
MOST_STEP: tl.constexpr = tl.constexpr(float(LARGEST_STEP))


@triton.jit
def _is_nan(x):  # type: ignore[no-untyped-def]
    return (tl.abs(x) <= float("inf")) == 0


@triton.jit
def _rounded_to_bf16(x):  # type: ignore[no-untyped-def]
    """The 16 bits of the nearest bf16, ties to even, in int32. By hand: the interpreter cuts instead."""
    bits = x.to(tl.int32, bitcast=True)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where(_is_nan(x), 0x7FC0, nearest) & 0xFFFF


@triton.jit
def _halves(  # type: ignore[no-untyped-def]
    new,
    new_dim,
    held,
    held_dim,
    words,
    N_GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """Writes a head's bytes of two elements and the words of its groups, as `reference.packed` has them."""
    group = tl.arange(0, GROUPS)[:, None]
    pair = tl.arange(0, PAIRS)[None, :]
    inside = (group < N_GROUPS) & (pair < GROUP // 2)
    at = group * (GROUP // 2) + pair
    even = tl.load(new + (2 * at) * new_dim, mask=inside, other=0.0).to(tl.float32)
    odd = tl.load(new + (2 * at + 1) * new_dim, mask=inside, other=0.0).to(tl.float32)
    low = tl.where(inside, tl.minimum(even, odd), float("inf"))
    high = tl.where(inside, tl.maximum(even, odd), float("-inf"))
    least, most = tl.min(low, 1, keep_dims=True), tl.max(high, 1, keep_dims=True)
    # A minimum passes over what is not a number, which the words then have to tell.
    bad = tl.max((_is_nan(even) | _is_nan(odd)).to(tl.int32), 1, keep_dims=True) > 0
    least = tl.where(bad, float("nan"), least)
    step = _rounded_to_bf16((most - least) * (1.0 / MOST_STEP))
    least = _rounded_to_bf16(least)
    word = step | (least << 16)
    tl.store(words + group, word, mask=group < N_GROUPS)
    step = (step << 16).to(tl.float32, bitcast=True)
    least = (least << 16).to(tl.float32, bitcast=True)
    step = tl.where(step == 0.0, 1.0, step)
    first = tl.div_rn(even - least, step)
    second = tl.div_rn(odd - least, step)
    first = tl.minimum(tl.maximum(first, 0.0), MOST_STEP) + ROUNDS - ROUNDS
    second = tl.minimum(tl.maximum(second, 0.0), MOST_STEP) + ROUNDS - ROUNDS
    both = first.to(tl.int32) | (second.to(tl.int32) << 4)
    tl.store(held + at * held_dim, both.to(tl.uint8), mask=inside)


@triton.jit
def in_bytes(x, LARGEST: tl.constexpr, stored: tl.constexpr):  # type: ignore[no-untyped-def]
    """Heads (heads, dims) in `stored`, a byte an element, and their scales (heads,) in fp32, bit for bit as
    `reference.quantized` has them. Dimensions that are none are zeros."""
    x = x.to(tl.float32)
    bad = tl.max(_is_nan(x).to(tl.int32), 1) > 0
    scale = tl.max(tl.abs(x), 1) * (1.0 / LARGEST)
    scale = tl.where(bad, float("nan"), scale)
    x = tl.div_rn(x, tl.where(scale == 0.0, 1.0, scale)[:, None])
    x = tl.minimum(tl.maximum(x, -1.0 * LARGEST), 1.0 * LARGEST)
    if stored == tl.int8:
        x = x + ROUNDS - ROUNDS
    return x.to(stored), scale


@triton.jit
def _whole(  # type: ignore[no-untyped-def]
    new,
    new_dim,
    held,
    held_dim,
    scale_at,
    LARGEST: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    """Writes a head's elements, with LARGEST as bytes and their scale."""
    dim = tl.arange(0, BLOCK_DIM)[None, :]
    inside = dim < HEAD_DIM
    x = tl.load(new + dim * new_dim, mask=inside, other=0.0)
    if LARGEST:
        x, scale = in_bytes(x, LARGEST, held.dtype.element_ty)
        tl.store(scale_at + tl.arange(0, 1), scale.to(scale_at.dtype.element_ty))
    tl.store(held + dim * held_dim, x, mask=inside)


@triton.jit(do_not_specialize=["n_new"])
def _cache_write(  # type: ignore[no-untyped-def]
    k_ptr,
    v_ptr,
    keys_ptr,
    values_ptr,
    k_scale_ptr,
    v_scale_ptr,
    slots_ptr,
    table_ptr,
    n_new,
    k_batch,
    k_head,
    k_token,
    k_dim,
    v_batch,
    v_head,
    v_token,
    v_dim,
    keys_batch,
    keys_head,
    keys_position,
    keys_dim,
    values_batch,
    values_head,
    values_position,
    values_dim,
    ks_batch,
    ks_head,
    ks_position,
    vs_batch,
    vs_head,
    vs_position,
    slots_batch,
    slots_token,
    table_batch,
    table_page,
    PAGE_SIZE: tl.constexpr,
    LARGEST: tl.constexpr,
    N_GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    PAIRS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    """In a cache in pages `*_batch` is a page's stride, and `*_position` that of a position within its page.
    Scales of half bytes are words, a group's step and least element in each."""
    batch = (tl.program_id(0) // n_new).to(tl.int64)
    token = (tl.program_id(0) % n_new).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    slot = tl.load(slots_ptr + batch * slots_batch + token * slots_token)
    page = batch
    if PAGE_SIZE:
        entry = table_ptr + batch * table_batch + (slot // PAGE_SIZE) * table_page
        page = tl.load(entry).to(tl.int64)
        slot = slot % PAGE_SIZE
    new_k = k_ptr + batch * k_batch + head * k_head + token * k_token
    new_v = v_ptr + batch * v_batch + head * v_head + token * v_token
    key = keys_ptr + page * keys_batch + head * keys_head + slot * keys_position
    value = values_ptr + page * values_batch + head * values_head + slot * values_position
    k_scale = k_scale_ptr + page * ks_batch + head * ks_head + slot * ks_position
    v_scale = v_scale_ptr + page * vs_batch + head * vs_head + slot * vs_position
    if N_GROUPS:
        _halves(new_k, k_dim, key, keys_dim, k_scale, N_GROUPS, GROUP, GROUPS, PAIRS)
        _halves(new_v, v_dim, value, values_dim, v_scale, N_GROUPS, GROUP, GROUPS, PAIRS)
    else:
        _whole(new_k, k_dim, key, keys_dim, k_scale, LARGEST, HEAD_DIM, BLOCK_DIM)
        _whole(new_v, v_dim, value, values_dim, v_scale, LARGEST, HEAD_DIM, BLOCK_DIM)


def cache_write_(
    keys: Tensor,
    values: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Tensor,
    *,
    block_table: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """As `api.cache_write_`, without its checks."""
    page_size = 0
    if block_table is not None:
        page_size = keys.shape[1]
        keys, values = keys.transpose(1, 2), values.transpose(1, 2)
        k_scale, v_scale = (None if s is None else s.transpose(1, 2) for s in (k_scale, v_scale))
    if k_scale is not None and v_scale is not None and keys.dtype == uint8:
        k_scale, v_scale = (each.view(torch_int32).squeeze(-1) for each in (k_scale, v_scale))
    batch, kv_heads, n_new, head_dim = k.shape
    if k.numel() == 0:
        return
    n_groups = head_dim // group_size(head_dim) if keys.dtype == uint8 else 0
    launch(
        _cache_write,
        (batch * n_new, kv_heads),
        k,
        v,
        keys,
        values,
        # A pointer of its own type where there are no scales: never read.
        keys if k_scale is None else k_scale,
        values if v_scale is None else v_scale,
        slots,
        slots if block_table is None else block_table,
        n_new,
        *k.stride(),
        *v.stride(),
        *keys.stride(),
        *values.stride(),
        *((0, 0, 0) if k_scale is None else k_scale.stride()[:3]),
        *((0, 0, 0) if v_scale is None else v_scale.stride()[:3]),
        *slots.stride(),
        *((0, 0) if block_table is None else block_table.stride()),
        PAGE_SIZE=page_size,
        LARGEST=int(LARGEST.get(keys.dtype, 0)),
        N_GROUPS=n_groups,
        GROUP=group_size(head_dim),
        GROUPS=triton.next_power_of_2(max(1, n_groups)),
        PAIRS=triton.next_power_of_2(max(1, group_size(head_dim) // 2)),
        HEAD_DIM=head_dim,
        BLOCK_DIM=triton.next_power_of_2(head_dim),
        num_warps=1,
    )
