"""LayerNorm forward and backward, the residual's addition with it (`rows.norm`)."""

from typing import NamedTuple

from torch import Tensor

from peakward.lab.ops.rows.layout import RowSettings, tiles
from peakward.lab.ops.rows.norm.backward import Gradients, gradients
from peakward.lab.ops.rows.norm.forward import normalise
from peakward.lab.ops.rows.norm.settings import SpreadSettings

MOST_COLUMNS = 65536
"""Of a row in the registers of 32 warps, of 16 bits; half as many of 32, or with a residual."""
PIECE = 8192


class Normalised(NamedTuple):
    y: Tensor
    s: Tensor | None
    """x + residual, where there is a residual."""
    mean: Tensor
    """(rows,) of fp32, as r is."""
    r: Tensor


def settings_for(width: int, itemsize: int, inputs: int = 1) -> RowSettings:
    """Forward: one program a tile, whose occupancy hides what a row waits for."""
    most = MOST_COLUMNS // inputs // (2 if itemsize == 4 else 1)
    if width > most:
        return RowSettings(rows=1, columns=PIECE, warps=16)
    chosen = tiles(width, itemsize=itemsize, most_columns=most)
    return _shared(chosen, width, inputs) if itemsize == 2 else chosen


def _shared(chosen: RowSettings, width: int, inputs: int) -> RowSettings:
    """With so few registers, of rows of 16 bits and whole vectors, that two programs or three share a
    multiprocessor: while one waits for its mean or variance others load (H100: 16,384 × 10,000 232 µs for
    259, 8,192 × 20,000 232 for 320, × 32,768 191 for 197)."""
    if not 8192 < chosen.columns <= 32768:
        return chosen
    if inputs == 1 and width % 8 == 0:
        if width <= 12288:
            return chosen._replace(warps=8, registers=80)
        if width > 16384:
            return chosen._replace(warps=16, registers=64)
    return chosen._replace(warps=chosen.columns // 1024)


def layer_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    settings: RowSettings | None = None,
) -> Normalised:
    """As `reference.layer_norm` and `add_layer_norm`; the arguments are those of `normalise`."""
    inputs = 1 + (residual is not None)
    chosen = settings or settings_for(x.shape[-1], x.element_size(), inputs)
    return Normalised(*normalise(x, residual, weight, bias, eps, chosen, centred=True))


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
