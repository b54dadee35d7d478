"""Replaces operators of tensors without values by those that a step on CUDA dispatches.

Grouped products: torch's `grouped_mm` is one kernel in bf16 on compute capability 9 and 10. Elsewhere it is
a loop over the groups (`_grouped_mm_fallback` in ATen/native/GroupedMMUtils.h, torch 2.13), before which the
host waits to know where each group ends. Autocast does not know it, so a mixture of experts with fp32
parameters multiplies in fp32.

The gradient of indexing: it adds to zeros in place, but where a mode watches, autograd adds to a copy of them
(`index_backward` in FunctionsManual.cpp).
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from peakward.hardware.attention_backend import ComputeCapability
from peakward.hardware.devices import CAPABILITIES

_aten = torch.ops.aten
_GROUPED = _aten._grouped_mm.default
_PUT = _aten.index_put.default


class DispatchedAsOnCuda(TorchDispatchMode):
    """Replaces these operators while it is on. What it calls in their place is seen by the modes around it.

    Rows of grouped products are dealt to the groups evenly, for values decide which go where.

    Args:
        compute_capability: The GPU's.
    """

    def __init__(self, compute_capability: ComputeCapability) -> None:
        super().__init__()
        self._has_kernel = compute_capability[0] in CAPABILITIES
        self.loops = False
        """Whether a grouped product was a loop."""

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _GROUPED and not (self._has_kernel and args[0].dtype == torch.bfloat16):
            a, b, ends = (*args, kwargs.get("offs"))[:3]
            if ends is None:
                return _aten.bmm.default(a, b)
            self.loops = True
            return _looped(a, b, ends)
        if func is _PUT and _differentiates_indexing():
            zeros, indices, gradient = args[:3]
            return _aten._index_put_impl_.default(zeros, indices, gradient, True, True)
        return func(*args, **kwargs)


def _differentiates_indexing() -> bool:
    node = torch._C._current_autograd_node()
    return node is not None and node.name().startswith("IndexBackward")


def _looped(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    """Groups are cut from the rows of a, from the columns of b, or from what both are summed over. The ends
    are copied to the host first."""
    _aten._to_copy.default(ends)
    n_groups, multiply = ends.shape[0], _aten.mm.out
    if b.dim() == 3:
        result = a.new_empty(a.shape[0], b.shape[2])
        for i, begin, end in _dealt(a.shape[0], n_groups):
            multiply(a[begin:end], b[i], out=result[begin:end])
    elif a.dim() == 3:
        result = a.new_empty(a.shape[1], b.shape[1])
        for i, begin, end in _dealt(b.shape[1], n_groups):
            multiply(a[i], b[:, begin:end], out=result[:, begin:end])
    else:
        result = a.new_empty(n_groups, a.shape[0], b.shape[1])
        for i, begin, end in _dealt(a.shape[1], n_groups):
            multiply(a[:, begin:end], b[begin:end], out=result[i])
    return result


def _dealt(size: int, n_groups: int) -> Iterator[tuple[int, int, int]]:
    """Each group that is not empty, with its begin and its end."""
    ends = [i * size // n_groups for i in range(n_groups + 1)]
    return ((i, begin, end) for i, (begin, end) in enumerate(pairwise(ends)) if begin < end)
