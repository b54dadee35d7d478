"""Starting the kernel that settings are for."""

from collections.abc import Sequence

import triton
from torch import Tensor

from peakward.kernels.ops.recording import launch
from peakward.kernels.ops.rows.layout import RowSettings, alignment, vector


def vector_of(*inputs: Tensor, out: Tensor) -> int:
    """As `layout.vector`; out is contiguous."""
    itemsize = min(each.element_size() for each in (*inputs, out))
    width = inputs[0].shape[1]
    return vector(itemsize, width, *(each.stride(0) for each in inputs), width)


def over_rows(
    kernels: Sequence[triton.JITFunction],
    inputs: tuple[Tensor, ...],
    out: Tensor,
    settings: RowSettings,
    n_vector: int,
) -> None:
    """Launches the kernel that the settings are for: that of tiles, of rows or of pieces of rows."""
    n_rows, width = inputs[0].shape
    strides = [each.stride(0) for each in inputs]
    align = alignment(width, *strides)
    extents = (width // align, *(each // align for each in strides), align)
    of_tiles, of_rows, of_pieces = kernels
    if settings.rows > 1:
        kernel = of_tiles
        cut: tuple[int, ...] = (n_rows, settings.rows, settings.columns)
    elif settings.held >= width:
        kernel, cut = of_rows, (settings.columns, settings.more, n_vector)
    else:
        kernel, cut = of_pieces, (settings.columns, n_vector)
    grid = (triton.cdiv(n_rows, settings.rows),)
    launch(kernel, grid, *inputs, out, *extents, *cut, num_warps=settings.warps)
