"""New keys and values of a step in a cache, rounded as it stores them, in one launch.

A step of decode writes one token of each sequence. By torch that takes six kernels a layer for a cache in the
type of the model and many more for one in fewer bits, each of which takes longer to start than to run.

Under torch.compile it is one operator, `peakward::cache_write`; it has no gradient.
"""

import torch
from torch import Tensor

from peakward.kernels.ops.calling import operator
from peakward.kernels.ops.decode_attention.api import FP8_CAPABILITY, MOST_HEAD_DIM, require_words
from peakward.kernels.ops.decode_attention.reference import LARGEST, layout
from peakward.kernels.ops.launchable import (
    FLOATS,
    require_floats,
    require_launchable,
    require_one_device,
)

OP = "cache_write_"


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
    if block_table is not None and (
        block_table.dim() != 2 or len(block_table) != batch or block_table.dtype != torch.int32
    ):
        raise ValueError(
            f"{OP}: expected block_table of ({batch}, max_pages) in int32, got {tuple(block_table.shape)} in "
            f"{block_table.dtype}"
        )
    _op(keys, values, k_scale, v_scale, k, v, slots, block_table)


def takes(k: Tensor, stored: torch.dtype) -> bool:
    """Whether the kernel can write such keys to a cache of that type."""
    if not k.is_cuda or k.dtype not in FLOATS or k.shape[-1] > MOST_HEAD_DIM:
        return False
    capability = torch.cuda.get_device_capability(k.device)
    return capability >= (FP8_CAPABILITY if stored == torch.float8_e4m3fn else (8, 0))


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
    if keys.is_cuda and keys.dtype == torch.float8_e4m3fn:
        properties = torch.cuda.get_device_properties(keys.device)
        if (properties.major, properties.minor) < FP8_CAPABILITY:
            raise ValueError(
                f"{OP}: expected a GPU of compute capability 8.9 or later for a cache in {keys.dtype}, got "
                f"{properties.major}.{properties.minor}"
            )
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
    if held.dtype == torch.uint8 and head_dim % 2:
        raise ValueError(
            f"{OP}: expected an even head_dim for a cache of half bytes, got {head_dim}"
        )
    width, of_scale, scale_dtype = layout(head_dim, held.dtype)
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
