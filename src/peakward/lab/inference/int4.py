"""Caches of half a byte an element (`decode_attention.reference.packed`), contiguous and in pages."""

from typing import Any

import torch
from torch import Tensor

from peakward.kernels.ops.decode_attention.api import decode_attention, paged_decode_attention
from peakward.kernels.ops.decode_attention.reference import group_size, packed, unpacked
from peakward.lab.inference.paged import PagedCache
from peakward.lab.inference.passes import Pass
from peakward.lab.inference.sequences import ContiguousCache
from peakward.records.errors import PeakwardError
from peakward.records.model_shape import ModelShape


def _refuse(shape: ModelShape) -> None:
    if shape.head_dim % 2:
        raise PeakwardError(
            f"expected an even head_dim for a cache in int4, got {shape.head_dim}: take a cache in int8"
        )


class Int4Cache(ContiguousCache):
    """Room for `capacity` tokens in every row, in half a byte an element. A prompt attends to itself before
    it is stored; later tokens to what is stored."""

    def __init__(self, shape: ModelShape, *, dtype: torch.dtype, **others: Any) -> None:
        """
        Args:
            dtype: of the elements that are read.

        Raises:
            PeakwardError: an odd head_dim.
        """
        _refuse(shape)
        super().__init__(shape, dtype=torch.uint8, width=shape.head_dim // 2, **others)
        self.dtype = dtype
        groups = shape.head_dim // group_size(shape.head_dim)
        size = (2, *self.keys.shape[:-1], groups, 2)
        self.kept = torch.zeros(size, device=self.device, dtype=torch.bfloat16)
        """Steps and leasts of keys, then those of values: (2, layers, n_rows, kv_heads, capacity, groups,
        2)."""

    @property
    def n_bytes(self) -> int:
        return super().n_bytes + self.kept.nbytes

    def write(self, layer: int, at: Pass, k: Tensor, v: Tensor) -> None:
        stored = [packed(each) for each in (k, v)]
        super().write(layer, at, *(each for each, _ in stored))
        row = torch.arange(len(at.own), device=at.own.device)[:, None]
        for kept, (_, new) in zip(self.kept, stored, strict=True):
            kept[layer, at.rows][row, :, at.own] = new.transpose(1, 2)

    def read(self, layer: int, at: Pass) -> tuple[Tensor, Tensor]:
        k_kept, v_kept = self.kept[:, layer, at.rows, :, : at.longest]
        keys, values = super().read(layer, at)
        return unpacked(keys, k_kept, self.dtype), unpacked(values, v_kept, self.dtype)

    def attend(self, layer: int, at: Pass, q: Tensor) -> Tensor:
        k_kept, v_kept = self.kept[:, layer, at.rows]
        return decode_attention(
            q,
            self.keys[layer, at.rows],
            self.values[layer, at.rows],
            at.ends,
            window=self.shape.window,
            k_scale=k_kept,
            v_scale=v_kept,
        )


class Int4PagedCache(PagedCache):
    """`Int4Cache` in pages."""

    def __init__(self, shape: ModelShape, *, dtype: torch.dtype, **others: Any) -> None:
        """
        Args:
            dtype: of the elements that are read.

        Raises:
            PeakwardError: as `Int4Cache`.
        """
        _refuse(shape)
        super().__init__(shape, dtype=torch.uint8, width=shape.head_dim // 2, **others)
        self.dtype = dtype
        groups = shape.head_dim // group_size(shape.head_dim)
        size = (2, *self.keys.shape[:-1], groups, 2)
        self.kept = torch.zeros(size, device=self.device, dtype=torch.bfloat16)
        """Steps and leasts of keys, then those of values: (2, layers, n_pages + 1, page_size, kv_heads,
        groups, 2)."""

    @property
    def n_bytes(self) -> int:
        return super().n_bytes + self.kept.nbytes

    @property
    def _parts(self) -> tuple[Tensor, ...]:
        return (*super()._parts, *self.kept)

    def write(self, layer: int, at: Pass, k: Tensor, v: Tensor) -> None:
        stored = [packed(each) for each in (k, v)]
        super().write(layer, at, *(each for each, _ in stored))
        new = (kept for _, kept in stored)
        self._put(at, *zip(self.kept[:, layer], new, strict=True))

    def read(self, layer: int, at: Pass) -> tuple[Tensor, Tensor]:
        k_kept, v_kept = (self._of_rows(at, each) for each in self.kept[:, layer])
        keys, values = super().read(layer, at)
        return unpacked(keys, k_kept, self.dtype), unpacked(values, v_kept, self.dtype)

    def attend(self, layer: int, at: Pass, q: Tensor) -> Tensor:
        k_kept, v_kept = self.kept[:, layer]
        return paged_decode_attention(
            q,
            self.keys[layer],
            self.values[layer],
            self.block_table[at.rows],
            at.ends,
            window=self.shape.window,
            k_scale=k_kept,
            v_scale=v_kept,
        )
