"""How rows are laid over programs, of either pass."""

from peakward.lab.ops.rows.layout import RowSettings, in_two, tiles

MOST_COLUMNS = 65536
"""Of a row in the registers of 32 warps, of 16 bits; half as many of 32, or of two inputs."""
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
