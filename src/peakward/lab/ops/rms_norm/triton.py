"""RMSNorm forward and backward, the residual's addition with it (`rows.norm`)."""

from typing import NamedTuple

from torch import Tensor

from peakward.lab.ops.rows.layout import RowSettings, tiles
from peakward.lab.ops.rows.norm.backward import gradients
from peakward.lab.ops.rows.norm.forward import normalise
from peakward.lab.ops.rows.norm.settings import SpreadSettings

MOST_COLUMNS = 65536
"""Of a row in the registers of 32 warps, of 16 bits; half as many of 32, or with a residual."""
PIECE = 8192


class Normalised(NamedTuple):
    y: Tensor
    s: Tensor | None
    """x + residual, where there is a residual."""
    r: Tensor
    """(rows,) of fp32."""


def settings_for(width: int, itemsize: int, inputs: int = 1) -> RowSettings:
    """Forward: one program a tile, whose occupancy hides what a row waits for."""
    most = MOST_COLUMNS // inputs // (2 if itemsize == 4 else 1)
    if width <= most:
        return tiles(width, itemsize=itemsize, most_columns=most)
    return RowSettings(rows=1, columns=PIECE, warps=32)


def rms_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    eps: float,
    settings: RowSettings | None = None,
) -> Normalised:
    """As `reference.rms_norm` and `add_rms_norm`; the arguments are those of `normalise`."""
    inputs = 1 + (residual is not None)
    chosen = settings or settings_for(x.shape[-1], x.element_size(), inputs)
    y, s, _, r = normalise(x, residual, weight, None, eps, chosen, centred=False)
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
