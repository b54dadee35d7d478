"""The values of tensors of any kind, as real numbers in strided memory, and whether they are finite."""

import math
from collections.abc import Mapping
from typing import TypeGuard

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves


def is_followed(found: object) -> TypeGuard[Tensor]:
    """Whether it is a tensor whose values can be not finite."""
    return isinstance(found, Tensor) and (found.is_floating_point() or found.is_complex())


def tensors_in(found: object) -> list[Tensor]:
    """Every tensor in containers, and in the items or attributes of other objects.

    It runs at each watched step. With torch's tree_leaves and tree_map watching took 18 µs of the host a step
    (three tensors in a dict), without them 10.
    """
    if isinstance(found, Tensor):
        return [found]
    if isinstance(found, dict | list | tuple):
        inside = found.values() if isinstance(found, dict) else found
        return [one for each in inside for one in tensors_in(each)]
    held = dict(found) if isinstance(found, Mapping) else getattr(found, "__dict__", None)
    return [one for one in tree_leaves(dict(held)) if isinstance(one, Tensor)] if held else []


def plain(tensor: Tensor) -> Tensor:
    """The values in the memory that holds them, detached.

    Those of a complex tensor are (..., 2), real and imaginary parts; those of a sparse one are the stored
    ones (n_stored, ...).
    """
    values = tensor.detach()
    if values.is_sparse:
        values = values._values()
    if values.is_complex():
        # view_as_real takes no conjugate, whose own conjugate is the same memory.
        values = torch.view_as_real(values.conj() if values.is_conj() else values)
    return values


def wide(tensor: Tensor) -> Tensor:
    """As `plain`, in fp32 where an element has one byte: few operators take such types."""
    values = plain(tensor)
    return values.float() if values.element_size() == 1 else values


def is_finite(tensor: Tensor) -> bool:
    """Whether every value is; waits for the device."""
    if not tensor.numel() or tensor.device.type == "meta":
        return True
    values = wide(tensor)
    if not values.numel():  # A sparse tensor that stores nothing.
        return True
    low, high = torch.aminmax(values)
    return math.isfinite(float(low)) and math.isfinite(float(high))
