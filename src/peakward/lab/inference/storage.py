"""Keys and values of all layers as a cache holds them: as they are read, or in fewer bits."""

from typing import NamedTuple

import torch
from torch import Tensor

from peakward.kernels.ops.cache_write import api, reference
from peakward.kernels.ops.decode_attention.reference import LARGEST, dequantized, layout
from peakward.records.errors import PeakwardError

NARROW = (*LARGEST, torch.uint8)
"""The types that hold keys and values in fewer bits, see `empty`."""


class Storage(NamedTuple):
    """Keys and values, each (layers, …, head_dim), or of one layer without the first dimension; between these
    (rows, kv_heads, slots) or (pages, kv_heads, page_size). In fewer bits there are scales beside them."""

    keys: Tensor
    values: Tensor
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """The tensors that there are."""
        return tuple(each for each in self if each is not None)

    @property
    def n_bytes(self) -> int:
        return sum(each.nbytes for each in self.parts)

    @property
    def layers(self) -> "list[Storage]":
        """Each layer's, where there are all."""
        return [self.at(each) for each in range(len(self.keys))]

    def at(self, *index: int | slice) -> "Storage":
        """Views of the same part of each, such as of a layer and some rows."""
        return Storage(*(each[index] for each in self.parts))

    def write(self, k: Tensor, v: Tensor, slots: Tensor, block_table: Tensor | None = None) -> None:
        """Puts k and v (rows, kv_heads, n, head_dim) into their slots (rows, n) of one layer, or of pages
        (pages, page_size, kv_heads, …): on a GPU in one launch. See `kernels.cache_write_`."""
        put = api.cache_write_ if api.takes(k, self.keys.dtype) else reference.cache_write_
        scales = {"k_scale": self.k_scale, "v_scale": self.v_scale}
        put(self.keys, self.values, k, v, slots, block_table=block_table, **scales)

    def widened(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Keys and values to attend to, in `dtype` where they are held in fewer bits."""
        if self.k_scale is None or self.v_scale is None:
            return self.keys, self.values
        return (
            dequantized(self.keys, self.k_scale, dtype),
            dequantized(self.values, self.v_scale, dtype),
        )


def empty(
    size: tuple[int, ...],
    head_dim: int,
    *,
    dtype: torch.dtype,
    stored: torch.dtype | None,
    device: str,
) -> Storage:
    """Zeros.

    Args:
        size: all dimensions before head_dim.
        dtype: of what is read.
        stored: int8 or float8_e4m3fn for a byte an element and a scale for each key and each value of a head;
            uint8 for half a byte and a step and a least element for each group (`reference.packed`). None:
            as `dtype`.

    Raises:
        PeakwardError: another type, or a head_dim that 4 does not divide, for half a byte.
    """
    if stored is None:
        keys, values = (
            torch.zeros((*size, head_dim), dtype=dtype, device=device) for _ in range(2)
        )
        return Storage(keys, values)
    if stored not in NARROW:
        raise PeakwardError(
            f"expected keys and values stored in {', '.join(map(str, NARROW))}, got {stored}: take one of "
            "these, or None for the type that is read"
        )
    if stored == torch.uint8 and head_dim % 4:
        raise PeakwardError(
            f"expected a head_dim that 4 divides for a cache in int4, got {head_dim}: take a cache in int8"
        )
    width, of_scale, scale_dtype = layout(head_dim, stored)
    elements = [torch.zeros((*size, width), dtype=stored, device=device) for _ in range(2)]
    scales = [torch.zeros((*size, *of_scale), dtype=scale_dtype, device=device) for _ in range(2)]
    return Storage(*elements, *scales)
