"""How rows are laid over programs, of either pass."""

from collections.abc import Callable

from torch import Tensor

from peakward.kernels.ops.rows.candidates import one_row_or_more
from peakward.kernels.ops.rows.layout import (
    RowSettings,
    alignment,
    in_two,
    of_whole_vectors,
    power_of_two,
    tiles,
)
from peakward.kernels.ops.tuning import Outputs, tuned

MOST_COLUMNS = 65536
"""The most columns of a row of 16 bits in the registers of 32 warps; half as many of 32 bits, or of two
inputs."""
PIECE = 8192


def settings_for(
    width: int, itemsize: int, inputs: int = 1, *, has_edges: bool = False
) -> RowSettings:
    """Forward with one input, backward with two."""
    most = MOST_COLUMNS // inputs // (2 if itemsize == 4 else 1)
    if most < width <= most * inputs:
        # One input is held and the other read again, from the L1: H100, 2,048 rows of 65,536, 290 µs
        # for 309 in pieces, 4,096 of 50,257 469 for 489.
        return RowSettings(rows=1, columns=most * inputs, warps=32)
    if width > most:
        return RowSettings(rows=1, columns=PIECE * inputs, warps=16 * inputs)
    two = in_two(width, itemsize=itemsize, inputs=inputs)
    if two is not None:
        return two
    chosen = tiles(width, itemsize=itemsize, inputs=inputs, most_columns=most)
    if has_edges and chosen.rows > 1 and width > 128:
        # Of rows that share a tile nothing is known to be a whole vector.
        warps = max(1, chosen.warps // chosen.rows)
        return RowSettings(rows=1, columns=chosen.columns, warps=warps)
    return chosen


def settings_of(
    name: str,
    inputs: tuple[Tensor, ...],
    out: Tensor,
    n_vector: int,
    start: Callable[[RowSettings], Outputs],
) -> RowSettings:
    """By rule, or where asked for the fastest of what holds a row.

    Args:
        inputs: (rows, width) each; out contiguous.
        n_vector: as of `launch.vector_of`.
        start: the kernel of that name on these inputs.
    """
    n_rows, width = inputs[0].shape
    itemsize = max(each.element_size() for each in inputs)
    rule = settings_for(width, itemsize, len(inputs), has_edges=n_vector > 1)
    if rule.held < width:
        return rule
    types = " and ".join(str(each.dtype) for each in (*inputs, out))
    align = alignment(width, *(each.stride(0) for each in inputs))
    kind = "whole" if of_whole_vectors(align, *inputs, out) else "broken"
    return tuned(
        name,
        lambda: (
            f"{types}, {width} columns, up to {power_of_two(n_rows)} rows, {kind} vectors, edges "
            f"within {n_vector}"
        ),
        inputs[0].device,
        rule=rule,
        others=lambda: one_row_or_more(width, itemsize),
        start=start,
    )
