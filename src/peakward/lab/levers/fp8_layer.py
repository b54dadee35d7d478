"""One linear layer in fp8, with the delayed scales that it keeps.

They are state of its forward pass (`forwards.STATE`), no buffers: they stand in no `state_dict` and in no
copy, and find themselves anew by the first steps. What puts a model's state back knows of them.
"""

import torch
from torch import Tensor, nn

from peakward.kernels.ops.forwards import STATE
from peakward.kernels.ops.fp8_linear import reference
from peakward.kernels.ops.fp8_linear.api import fp8_linear, fp8_scales
from peakward.kernels.ops.fp8_linear.scales import Scales

_NAMES = tuple(f"{STATE}fp8_{each}" for each in Scales._fields)


def in_fp8(layer: nn.Linear, x: Tensor) -> Tensor:
    """The layer's three products in fp8, by its delayed scales where it trains."""
    return fp8_linear(x, layer.weight, layer.bias, scales_of(layer))


def rounded_by_torch(layer: nn.Linear, x: Tensor) -> Tensor:
    """The same roundings by torch's own operators, each by the tensor's own scale."""
    return reference.linear(x, layer.weight, layer.bias)


@torch.compiler.disable(  # type: ignore[untyped-decorator]
    reason="a graph cannot change in its backward pass what it made in the forward pass"
)
def keep_scales(layer: nn.Linear) -> Scales:
    """Give a layer empty histories on its device."""
    with torch.inference_mode(False):  # What is made inside cannot be changed outside.
        scales = fp8_scales(layer.weight.device)
    for name, each in zip(_NAMES, scales, strict=True):
        setattr(layer, name, each)
    return scales


def scales_of(layer: nn.Linear) -> Scales:
    """A layer's histories, after `keep_scales`; where it has moved since, empty ones."""
    x, weight, gradient = (getattr(layer, each) for each in _NAMES)
    if x.device != layer.weight.device:
        x, weight, gradient = keep_scales(layer)
    return Scales(x, weight, gradient)


def drop_scales(layer: nn.Linear) -> None:
    """Take the histories from a layer, after `keep_scales`."""
    for name in _NAMES:
        delattr(layer, name)
