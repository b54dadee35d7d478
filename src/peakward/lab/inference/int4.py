"""Caches of half a byte an element, contiguous and in pages.

The elements of a key or value are stored in groups: each as one of 16 steps from the group's least element to
its largest. Step and least are kept in bf16, whose range is that of the elements, and elements are rounded
to what these two give. With groups of 32 an element takes 5 bits.
"""

from typing import Any

import torch
from torch import Tensor

from peakward.lab.inference.paged import PagedCache
from peakward.lab.inference.passes import Pass
from peakward.lab.inference.sequences import ContiguousCache
from peakward.records.errors import PeakwardError
from peakward.records.model_shape import ModelShape

GROUP = 32
"""Elements that share a step, where this divides head_dim; else a head's all share one."""
LARGEST = 15


def group_size(head_dim: int) -> int:
    """The elements that share a step."""
    return GROUP if head_dim % GROUP == 0 else head_dim


def packed(elements: Tensor) -> tuple[Tensor, Tensor]:
    """Elements (…, head_dim) as they are stored.

    Returns:
        Bytes (…, head_dim / 2) of two elements each, the first in the lower half; and the step and the
        least of each group, (…, groups, 2) of bf16.
    """
    wide = torch.promote_types(elements.dtype, torch.float32)
    groups = elements.to(wide).unflatten(-1, (-1, group_size(elements.shape[-1])))
    least, most = groups.aminmax(dim=-1)
    kept = torch.stack(((most - least) / LARGEST, least), dim=-1).bfloat16()
    step, least = kept.to(wide).unbind(-1)
    steps = (groups - least[..., None]) / step.masked_fill(step == 0, 1)[..., None]
    pairs = steps.round().clamp(0, LARGEST).to(torch.uint8).flatten(-2).unflatten(-1, (-1, 2))
    return pairs[..., 0] | (pairs[..., 1] << 4), kept


def unpacked(stored: Tensor, kept: Tensor, dtype: torch.dtype) -> Tensor:
    """The elements that `packed` stored, in `dtype`."""
    wide = torch.promote_types(dtype, torch.float32)
    steps = torch.stack((stored & LARGEST, stored >> 4), dim=-1).flatten(-2).to(wide)
    step, least = kept.to(wide).unbind(-1)
    groups = steps.unflatten(-1, (step.shape[-1], -1))
    return (groups * step[..., None] + least[..., None]).flatten(-2).to(dtype)


def _refuse(shape: ModelShape, attention: str) -> None:
    if shape.head_dim % 2 or attention != "as-model":
        got = f"a head_dim of {shape.head_dim}" if shape.head_dim % 2 else attention
        raise PeakwardError(
            f"expected an even head_dim and attention as-model for a cache in int4, got {got}: take a "
            "cache in int8"
        )


class Int4Cache(ContiguousCache):
    """Room for `capacity` tokens in every row, in half a byte an element. A prompt attends to itself before
    it is stored; later tokens to what is stored."""

    def __init__(self, shape: ModelShape, *, dtype: torch.dtype, **others: Any) -> None:
        """
        Args:
            dtype: of the elements that are read.

        Raises:
            PeakwardError: an odd head_dim, or attention by the kernel, which reads no half bytes.
        """
        _refuse(shape, others.get("attention", "as-model"))
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


class Int4PagedCache(PagedCache):
    """`Int4Cache` in pages."""

    def __init__(self, shape: ModelShape, *, dtype: torch.dtype, **others: Any) -> None:
        """
        Args:
            dtype: of the elements that are read.

        Raises:
            PeakwardError: as `Int4Cache`.
        """
        _refuse(shape, others.get("attention", "as-model"))
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
