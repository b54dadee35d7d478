"""Measures what a forward pass leaves allocated for the backward pass."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def held_bytes(forward: Callable[[], Tensor], inputs: Sequence[Tensor]) -> int:
    """Bytes that the forward pass leaves, its result included and its inputs not.

    On CUDA what the allocator has more of afterwards, rounded as it rounds; on a CPU the storages
    that autograd saved, each once, and the result's.
    """
    if inputs[0].is_cuda:
        return _allocated_bytes(forward)
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        kept.append(forward())
    sizes = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in kept}
    for each in inputs:
        sizes.pop(each.untyped_storage().data_ptr(), None)
    return sum(sizes.values())


def _allocated_bytes(forward: Callable[[], Tensor]) -> int:
    before = torch.cuda.memory_allocated()
    output = forward()
    held = torch.cuda.memory_allocated() - before
    del output
    return held
