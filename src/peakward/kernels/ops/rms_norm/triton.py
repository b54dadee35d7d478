"""RMSNorm forward and backward, the residual's addition with it (`rows.norm`)."""

from typing import NamedTuple

from torch import Tensor

from peakward.kernels.ops.rows.layout import RowSettings
from peakward.kernels.ops.rows.norm.backward import gradients
from peakward.kernels.ops.rows.norm.forward import normalise
from peakward.kernels.ops.rows.norm.settings import SpreadSettings


class Normalised(NamedTuple):
    y: Tensor
    s: Tensor | None
    """x + residual, where there is a residual."""
    r: Tensor
    """(rows,) of fp32."""


def rms_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    eps: float,
    settings: RowSettings | SpreadSettings | None = None,
) -> Normalised:
    """As `reference.rms_norm` and `add_rms_norm`; the arguments are those of `normalise`."""
    y, s, _, r = normalise(x, residual, weight, None, eps, settings, centred=False)
    return Normalised(y, s, r)


def rms_norm_backward(
    gradient: Tensor,
    s_gradient: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    r: Tensor,
    settings: RowSettings | SpreadSettings | None = None,
) -> tuple[Tensor, Tensor | None]:
    """As `reference.rms_norm_backward`; the arguments are those of `gradients`."""
    of_x, of_weight, _ = gradients(gradient, s_gradient, x, weight, None, None, r, settings)
    return of_x, of_weight
