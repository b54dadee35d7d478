"""Grouped products of tensors without values, as CUDA carries them out where it has no kernel for them.

torch's `grouped_mm` is one kernel in bf16 on compute capability 9 and 10. Elsewhere it is a loop over the
groups (`_grouped_mm_fallback` in ATen/native/GroupedMMUtils.h, torch 2.13), before which the host waits to
know where each group ends. Autocast does not know it, so a mixture of experts with fp32 parameters multiplies
in fp32.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from peakward.hardware.attention_backend import ComputeCapability
from peakward.hardware.devices import CAPABILITIES

_GROUPED = torch.ops.aten._grouped_mm.default
_PRODUCT = torch.ops.aten.mm.out


class GroupedInLoops(TorchDispatchMode):
    """Runs such a product as its loop. Rows are dealt to the groups evenly, for values decide which go where.

    Args:
        compute_capability: The GPU's.
        on_read: Is given the ends of the groups, for which the host waits.
    """

    def __init__(
        self, compute_capability: ComputeCapability, on_read: Callable[[Tensor], None]
    ) -> None:
        super().__init__()
        self._has_kernel = compute_capability[0] in CAPABILITIES
        self._on_read = on_read

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not _GROUPED or (self._has_kernel and args[0].dtype == torch.bfloat16):
            return func(*args, **kwargs)
        a, b, ends = (*args, kwargs.get("offs"))[:3]
        if ends is None:
            return torch.ops.aten.bmm.default(a, b)
        self._on_read(ends)
        return _looped(a, b, ends.shape[0])


def _looped(a: Tensor, b: Tensor, n_groups: int) -> Tensor:
    """Groups are cut from the rows of a, from the columns of b, or from what both are summed over."""
    if b.dim() == 3:
        result = a.new_empty(a.shape[0], b.shape[2])
        for i, begin, end in _dealt(a.shape[0], n_groups):
            _PRODUCT(a[begin:end], b[i], out=result[begin:end])
    elif a.dim() == 3:
        result = a.new_empty(a.shape[1], b.shape[1])
        for i, begin, end in _dealt(b.shape[1], n_groups):
            _PRODUCT(a[i], b[:, begin:end], out=result[:, begin:end])
    else:
        result = a.new_empty(n_groups, a.shape[0], b.shape[1])
        for i, begin, end in _dealt(a.shape[1], n_groups):
            _PRODUCT(a[:, begin:end], b[begin:end], out=result[i])
    return result


def _dealt(size: int, n_groups: int) -> Iterator[tuple[int, int, int]]:
    """Each group that is not empty, with its begin and its end."""
    ends = [i * size // n_groups for i in range(n_groups + 1)]
    return ((i, begin, end) for i, (begin, end) in enumerate(pairwise(ends)) if begin < end)
