"""LayerNorm forward and backward, the residual's addition with it (`rows.norm`)."""

from typing import NamedTuple

from torch import Tensor

from peakward.kernels.ops.rows.layout import RowSettings
from peakward.kernels.ops.rows.norm.backward import Gradients, gradients
from peakward.kernels.ops.rows.norm.forward import normalise
from peakward.kernels.ops.rows.norm.settings import SpreadSettings


class Normalised(NamedTuple):
    y: Tensor
    s: Tensor | None
    """x + residual, where there is a residual."""
    mean: Tensor
    """(rows,) of fp32, as r is."""
    r: Tensor


def layer_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    settings: RowSettings | SpreadSettings | None = None,
) -> Normalised:
    """As `reference.layer_norm` and `add_layer_norm`; the arguments are those of `normalise`."""
    return Normalised(*normalise(x, residual, weight, bias, eps, settings, centred=True))


def layer_norm_backward(
    gradient: Tensor,
    s_gradient: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    r: Tensor,
    settings: RowSettings | SpreadSettings | None = None,
) -> Gradients:
    """As `reference.layer_norm_backward`; the arguments are those of `gradients`."""
    return gradients(gradient, s_gradient, x, weight, bias, mean, r, settings)
