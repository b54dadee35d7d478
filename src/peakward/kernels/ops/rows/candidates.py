"""Other ways to lay rows over a GPU than the rules', to be timed beside them."""

from peakward.kernels.ops.rows.layout import RowSettings, in_two, power_of_two
from peakward.kernels.ops.rows.norm.settings import SpreadSettings


def one_row_or_more(width: int, itemsize: int) -> tuple[RowSettings, ...]:
    """A program: whole rows, 1 or 4 a tile, with 8 to 64 elements a thread, or one in two tiles."""
    whole, two = power_of_two(width), in_two(width, itemsize=itemsize)
    return (() if two is None else (two,)) + tuple(
        RowSettings(rows, whole, rows * whole // (32 * each))
        for each in (8, 16, 32, 64)
        for rows in ((1, 4) if whole <= 4096 else (1,))
        if 2 <= rows * whole // (32 * each) <= 32
    )


def many_tiles_a_program(rule: RowSettings, multiprocessors: int) -> tuple[RowSettings, ...]:
    """Around the rule rows of a tile, programs a multiprocessor, tiles ahead."""
    more = min(2 * rule.warps, rule.columns // 256)
    return tuple(
        RowSettings(rows, rule.columns, warps, count * multiprocessors, stages)
        for rows, warps in ((rule.rows, rule.warps), (2 * rule.rows, more))
        for count, stages in ((1, 3), (1, 4), (1, 6), (2, 3), (2, 4), (4, 3))
        if rows == rule.rows or (count < 4 and stages < 6)
    )


def spread(itemsize: int) -> tuple[SpreadSettings, ...]:
    """Candidates with pieces of 4 to 16 KB, by programs a multiprocessor and rows in shared memory."""
    return tuple(
        SpreadSettings(kib * 1024 // itemsize, kib // 2, programs, slots)
        for kib, programs, slots in (
            *((4, 5, 4), (4, 6, 3), (4, 6, 4), (4, 7, 3), (4, 8, 4)),
            *((8, 2, 4), (8, 3, 3), (8, 3, 4), (8, 4, 3), (16, 2, 3)),
        )
    )
