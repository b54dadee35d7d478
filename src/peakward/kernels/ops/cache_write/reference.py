"""New keys and values in a cache, as it stores them: by torch, on any device."""

import torch
from torch import Tensor

from peakward.kernels.ops.decode_attention.reference import quantized


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
    """As `api.cache_write_`; k and v may be fp64 too."""
    where: tuple[Tensor | slice, ...]
    if block_table is None:
        where = (torch.arange(len(slots), device=slots.device)[:, None], slice(None), slots)
    else:
        page_size = keys.shape[1]
        where = (block_table.long().gather(1, slots // page_size), slots % page_size)
    if k_scale is not None and v_scale is not None:
        (k, new_k_scale), (v, new_v_scale) = (quantized(each, keys.dtype) for each in (k, v))
        k_scale[where], v_scale[where] = new_k_scale.transpose(1, 2), new_v_scale.transpose(1, 2)
    keys[where], values[where] = k.transpose(1, 2), v.transpose(1, 2)
