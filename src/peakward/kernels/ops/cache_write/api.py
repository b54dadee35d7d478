"""New keys and values of a step in a cache, rounded as it stores them, in one launch.

A step of decode writes one token of each sequence. By torch (`reference`) that is 3 operators a layer for a
cache in the type of the model and 6 in pages, in int8 27 and 30, in int4 37 and 40.

Under torch.compile it is one operator, `peakward::cache_write`; it has no gradient.
"""

from importlib.util import find_spec

import torch
from torch import Tensor

from peakward.kernels.ops.calling import operator
from peakward.kernels.ops.decode_attention.api import (
    FP8_CAPABILITY,
    MOST_HEAD_DIM,
    require_fp8,
    require_table,
    require_words,
    width_of,
)
from peakward.kernels.ops.decode_attention.reference import LARGEST, layout
from peakward.kernels.ops.launchable import (
    FLOATS,
    LEAST_CAPABILITY,
    require_floats,
    require_launchable,
    require_one_device,
)

OP = "cache_write_"
HAS_TRITON = find_spec("triton") is not None


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
    """Writes k and v into a cache that `decode_attention` reads.

    Args:
        keys, values: (batch, kv_heads, positions, head_dim) of any strides, in k's dtype; or int8 or
            float8_e4m3fn, or uint8 of head_dim / 2 bytes, with scales. With `block_table` they are pages,
            (n_pages, page_size, kv_heads, head_dim).
        k, v: (batch, kv_heads, n, head_dim) of any strides, in fp32, fp16 or bf16; head_dim at most 256.
        slots: (batch, n) of int64: the position at which each of the n is held. Two of a sequence differ.
            That they are below `positions`, or in pages that the table names, is not checked.
        block_table: (batch, max_pages) of int32: the page of the positions from i·page_size on.
        k_scale, v_scale: those of `decode_attention`, which are written too.

    Raises:
        ValueError: what the kernel cannot take, or no GPU that it runs on.
    """
    require_floats(OP, k=k, v=v)
    if (
        k.dim() != 4
        or k.shape != v.shape
        or k.dtype != v.dtype
        or not 1 <= k.shape[3] <= MOST_HEAD_DIM
    ):
        raise ValueError(
            f"{OP}: expected k and v of one type and of one (batch, kv_heads, n, head_dim), head_dim at most "
            f"{MOST_HEAD_DIM}, got {tuple(k.shape)} in {k.dtype} and {tuple(v.shape)} in {v.dtype}"
        )
    _require_stored(keys, k, k_scale, "keys", in_pages=block_table is not None)
    _require_stored(values, v, v_scale, "values", in_pages=block_table is not None)
    if keys.dtype != values.dtype or (k_scale is None) != (v_scale is None):
        raise ValueError(
            f"{OP}: expected keys and values of one type, both with scales or neither, got {keys.dtype} and "
            f"{values.dtype}"
        )
    batch, n = k.shape[0], k.shape[2]
    if slots.shape != (batch, n) or slots.dtype != torch.int64:
        raise ValueError(
            f"{OP}: expected slots of ({batch}, {n}) in int64, got {tuple(slots.shape)} in {slots.dtype}"
        )
    if block_table is not None:
        require_table(OP, block_table, batch)
    _op(keys, values, k_scale, v_scale, k, v, slots, block_table)


def takes(k: Tensor, stored: torch.dtype) -> bool:
    """Whether the kernel can write such keys to a cache of that type, so that a cache works elsewhere too: on
    a CPU, in fp64, without Triton, on GPUs of others than NVIDIA, on which no kernel here has run."""
    if not k.is_cuda or k.dtype not in FLOATS or k.shape[-1] > MOST_HEAD_DIM:
        return False
    if torch.version.cuda is None or not HAS_TRITON:
        return False
    capability = torch.cuda.get_device_capability(k.device)
    return capability >= (FP8_CAPABILITY if stored == torch.float8_e4m3fn else LEAST_CAPABILITY)


@operator("peakward::cache_write", mutates=("keys", "values", "k_scale", "v_scale"))
def _op(  # noqa: PLR0917 (torch takes no keyword-only tensors)
    keys: Tensor,
    values: Tensor,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    k: Tensor,
    v: Tensor,
    slots: Tensor,
    block_table: Tensor | None,
) -> None:
    require_launchable(OP, keys, values, k_scale, v_scale, k, v, slots, block_table)
    if keys.dtype == torch.uint8:
        require_words(OP, k_scale, v_scale)
    if keys.is_cuda:
        require_fp8(OP, keys.dtype, torch.cuda.get_device_capability(keys.device))
    from peakward.kernels.ops.cache_write import triton as kernels

    with torch.cuda.device_of(keys):
        kernels.cache_write_(
            keys,
            values,
            k,
            v,
            slots,
            block_table=block_table,
            k_scale=k_scale,
            v_scale=v_scale,
        )


@_op.register_fake
def _(*tensors: Tensor | None) -> None:
    require_one_device(OP, *tensors)


def _require_stored(
    held: Tensor, new: Tensor, scale: Tensor | None, name: str, *, in_pages: bool
) -> None:
    batch, kv_heads, _, head_dim = new.shape
    if scale is None:
        types: tuple[torch.dtype, ...] = (new.dtype,)
    else:
        types = (*LARGEST, torch.uint8)
    if held.dtype not in types:
        raise ValueError(
            f"{OP}: expected {name} in {' or '.join(map(str, types))}, got {held.dtype}: only int8, "
            "float8_e4m3fn and uint8 have scales, and always have"
        )
    width = width_of(OP, head_dim, held.dtype)
    _, of_scale, scale_dtype = layout(head_dim, held.dtype)
    first = "n_pages, page_size" if in_pages else f"{batch}, {kv_heads}"
    fits = held.dim() == 4 and held.shape[3] == width
    fits = fits and (held.shape[2] == kv_heads if in_pages else held.shape[:2] == new.shape[:2])
    if not fits:
        rest = f"{kv_heads}" if in_pages else "positions"
        raise ValueError(
            f"{OP}: expected {name} of ({first}, {rest}, {width}), got {tuple(held.shape)}"
        )
    if scale is None:
        return
    size = (*held.shape[:3], *of_scale)
    if (
        scale.shape != size
        or (of_scale and scale.dtype != scale_dtype)
        or scale.dtype not in FLOATS
    ):
        raise ValueError(
            f"{OP}: expected scales of {name} of {size} in {scale_dtype}, got {tuple(scale.shape)} in "
            f"{scale.dtype}"
        )
