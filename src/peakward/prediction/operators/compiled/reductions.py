"""How Inductor carries out sums across rows: in parts, or in the kernel that sums along them."""

PART_ROWS = 128
"""Rows that it sums at once where it sums in two steps."""
MIXED_PART_ROWS = 16
"""The same, where one kernel takes the sums along rows and across them."""
WIDEST_IN_PARTS = 8192
"""Sums, above which 132 multiprocessors have enough to do with one column each, so that none is taken in
parts."""
_MIXED_MIN_ROWS, _MIXED_MIN_ELEMENTS = 4096, 5 * 2**20


def mixes(n_rows: int, width: int) -> bool:
    """Whether sums across these rows are taken in the kernel that sums along them.

    `MixOrderReduction.can_fuse` of Inductor's `scheduler.py`: it pays where the rows are many.
    """
    enough = n_rows * width >= _MIXED_MIN_ELEMENTS
    return enough and n_rows >= max(_MIXED_MIN_ROWS, 2 * width)


def sums_in_parts(n_rows: int, width: int) -> bool:
    """Whether sums across rows are taken in parts of them, and then of the parts."""
    return n_rows > PART_ROWS and width <= WIDEST_IN_PARTS
