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
    if k_scale is not None and v_scale is not None:
        (k, new_k_scale), (v, new_v_scale) = (quantized(each, keys.dtype) for each in (k, v))
        _put(k_scale, new_k_scale, slots, block_table)
        _put(v_scale, new_v_scale, slots, block_table)
    _put(keys, k, slots, block_table)
    _put(values, v, slots, block_table)


def _put(held: Tensor, new: Tensor, slots: Tensor, block_table: Tensor | None) -> None:
    """Writes new (batch, kv_heads, n, …) to its slots (batch, n)."""
    if block_table is None:
        row = torch.arange(len(slots), device=slots.device)[:, None]
        held[row, :, slots] = new.transpose(1, 2)
        return
    page = block_table.long().gather(1, slots // held.shape[1])
    held[page, slots % held.shape[1]] = new.transpose(1, 2)
