"""One linear layer in fp8, with the delayed scales that it keeps.

The scales are buffers, so that they move with the layer, are copied with it, and are put back with the rest
of what a step changes. They stand in no `state_dict`: a model that is loaded finds its scales by its first
steps.
"""

from torch import Tensor, nn

from peakward.kernels.ops.fp8_linear import reference
from peakward.kernels.ops.fp8_linear.api import fp8_linear, fp8_scales
from peakward.kernels.ops.fp8_linear.scales import Scales

_NAMES = ("fp8_x_history", "fp8_weight_history", "fp8_gradient_history")


def in_fp8(layer: nn.Linear, x: Tensor) -> Tensor:
    """The layer's three products in fp8, by its delayed scales where it trains."""
    return fp8_linear(x, layer.weight, layer.bias, scales_of(layer))


def rounded_by_torch(layer: nn.Linear, x: Tensor) -> Tensor:
    """The same roundings by torch's own operators, each by the tensor's own scale."""
    return reference.linear(x, layer.weight, layer.bias)


def keep_scales(layer: nn.Linear) -> None:
    """Give a layer histories, empty ones, where it has none."""
    for name, each in zip(_NAMES, fp8_scales(layer.weight.device), strict=True):
        if not hasattr(layer, name):
            layer.register_buffer(name, each, persistent=False)


def scales_of(layer: nn.Linear) -> Scales:
    """A layer's histories, after `keep_scales`."""
    x_history, weight_history, gradient_history = (getattr(layer, each) for each in _NAMES)
    return Scales(x_history, weight_history, gradient_history)


def drop_scales(layer: nn.Linear) -> None:
    """Take the histories from a layer, where it has them."""
    for name in _NAMES:
        if hasattr(layer, name):
            delattr(layer, name)
