"""How the backward passes of norms are laid over a GPU."""

import torch

from peakward.lab.ops.rows.layout import (
    RowSettings,
    ahead,
    multiprocessors,
    power_of_two,
    shared_bytes,
)

MOST_COLUMNS = 16384
"""Of rows of 16 bits whose sums for the gradients of weight and bias stay in registers beside them."""
HELD_COLUMNS = 8192
"""Of a row that registers hold whole, with its weight and the sums; a wider one is held in pieces
(`wide`)."""


def backward_settings_for(
    width: int, itemsize: int, device: torch.device, inputs: int = 2
) -> RowSettings:
    columns, programs = power_of_two(width), multiprocessors(device)
    most = MOST_COLUMNS // (2 if itemsize == 4 else 1)
    if columns > most:
        return RowSettings(rows=1, columns=most // 2, warps=8, programs=programs, stages=3)
    if columns > HELD_COLUMNS:
        # With a residual's gradient to add the next row is worth its shared memory, two of its inputs
        # and the third's one (8,192 × 16,384 on an H100: RMSNorm 371 µs for 412, LayerNorm 422 for 465);
        # without one it is not (288 for 286, 410 for 327).
        stages = 2 if inputs > 2 and 5 * columns * itemsize < shared_bytes(device) else 1
        return RowSettings(rows=1, columns=columns, warps=16, programs=programs, stages=stages)
    if columns > most // 2:
        # Neither registers nor shared memory hold a second row of fp32 beside the sums.
        return RowSettings(rows=1, columns=columns, warps=8, programs=programs)
    return ahead(width, itemsize=itemsize, inputs=inputs, multiprocessors=programs)
