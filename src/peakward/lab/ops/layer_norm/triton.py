"""LayerNorm forward and backward, the residual's addition with it (`rows.norm`)."""

from typing import NamedTuple

import torch
from torch import Tensor

from peakward.lab.ops.rows.layout import (
    RowSettings,
    ahead,
    multiprocessors,
    power_of_two,
    tiles,
)
from peakward.lab.ops.rows.norm.backward import Gradients, gradients
from peakward.lab.ops.rows.norm.forward import normalise

MOST_COLUMNS = 65536
"""Of a row in the registers of 32 warps, of 16 bits; half as many of 32, or with a residual."""
MOST_COLUMNS_BACKWARD = 16384
"""Of rows whose sums for the gradients of weight and bias stay in registers beside them."""
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
    if width <= most:
        return tiles(width, itemsize=itemsize, most_columns=most)
    return RowSettings(rows=1, columns=PIECE, warps=16)


def backward_settings_for(
    width: int, itemsize: int, device: torch.device, inputs: int = 2
) -> RowSettings:
    columns, programs = power_of_two(width), multiprocessors(device)
    most = MOST_COLUMNS_BACKWARD // (2 if itemsize == 4 else 1)
    if columns > most:
        return RowSettings(rows=1, columns=most // 2, warps=8, programs=programs, stages=3)
    if columns > most // 2:
        # Spills some 150 bytes a thread: 355 µs where pieces took 591 (H100, 8,192 rows of 16,384).
        return RowSettings(rows=1, columns=columns, warps=8, programs=programs)
    return ahead(width, itemsize=itemsize, inputs=inputs, multiprocessors=programs)


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
    settings: RowSettings | None = None,
) -> Gradients:
    """As `reference.layer_norm_backward`; the arguments are those of `gradients`."""
    itemsize = max(gradient.element_size(), x.element_size())
    inputs = 2 + (s_gradient is not None)
    chosen = settings or backward_settings_for(x.shape[-1], itemsize, x.device, inputs)
    return gradients(gradient, s_gradient, x, weight, bias, mean, r, chosen)
