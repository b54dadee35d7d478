"""Other ways to cut products with quantised weights up than the rules', to be timed beside them."""

import triton
from torch import Tensor

from peakward.kernels.ops.quantized_matmul.triton.settings import (
    FEW_ROWS,
    MOST_SPLITS,
    WARPS,
    Digits,
    Direct,
    Row,
    Shared,
    split,
)

UP_TO_8 = (
    Direct(1, 16, rows=8, warps=8, depth=1),
    Direct(1, 16, rows=8, warps=8, depth=2),
    Direct(1, 32, rows=8, warps=4, depth=1),
    Direct(1, 32, rows=8, warps=4, depth=2),
)
UP_TO_16 = (
    Direct(1, 32, rows=16, warps=4, depth=1),
    Shared(1, 16, warps=8, n_stages=3),
    Shared(1, 16, warps=8, n_stages=4),
    Shared(1, 16, warps=4, n_stages=3),
)
UP_TO_32 = (Shared(1, 32, warps=8, n_stages=4), Shared(1, 32, warps=4, n_stages=4))
MORE = (Shared(1, 64, warps=8, n_stages=4), Shared(1, 64, warps=4, n_stages=4))
FEW_DIGITS = (
    Digits(1, 128, rows=16, warps=4, n_stages=4, is_apart=True),
    Digits(1, 64, rows=16, warps=4, n_stages=5, is_apart=True),
    Digits(1, 64, rows=16, warps=4, n_stages=5, is_apart=False),
)
MORE_DIGITS = (
    Digits(1, 64, rows=64, warps=4, n_stages=4, is_apart=True),
    Digits(1, 128, rows=64, warps=4, n_stages=3, is_apart=True),
    Digits(1, 128, rows=64, warps=8, n_stages=4, is_apart=True),
    Digits(1, 256, rows=64, warps=8, n_stages=4, is_apart=True),
)


def rounded(n_rows: int) -> int:
    """Rows of x of which one setting is the fastest: up to so many."""
    return n_rows if n_rows <= 1 else max(8, triton.next_power_of_2(n_rows))


def of_words(
    x: Tensor, n: int, n_tiles: int, n_multiprocessors: int
) -> tuple[Direct | Shared, ...]:
    """Candidates for a weight in words and x in 16 bits, split to 8 warps a multiprocessor and to 16."""
    m = rounded(len(x))
    if x.element_size() > 2:
        return ()
    tried: tuple[Direct | Shared, ...]
    tried = UP_TO_8 if m <= 8 else UP_TO_16 if m <= 16 else UP_TO_32 if m <= 32 else MORE
    return tuple(
        split(each, warps, m=m, n=n, n_tiles=n_tiles, n_multiprocessors=n_multiprocessors)
        for each in tried
        for warps in (WARPS, 2 * WARPS)
    )


def of_bytes(rule: Row | Digits, n_tiles: int, *, grouped: bool) -> tuple[Row | Digits, ...]:
    """Candidates for a weight of 8 bits that is read along its rows, as the rule reads it, in as many rows.

    Args:
        grouped: whether a channel has several scales.
    """
    kinds: tuple[Row | Digits, ...]
    if isinstance(rule, Row) and grouped:
        kinds = (rule,)
    elif isinstance(rule, Row):
        kinds = (rule, Row(1), Row(1, channels=4, columns=1024, n_stages=3), Row(1, channels=16))
    else:
        shapes = FEW_DIGITS if rule.rows <= FEW_ROWS else MORE_DIGITS
        kinds = (rule, *(each._replace(rows=rule.rows) for each in shapes))
    splits = {max(1, rule.n_splits - 1), rule.n_splits, rule.n_splits + 1}
    return tuple(
        each._replace(n_splits=min(n_splits, max(1, n_tiles // 4), MOST_SPLITS))
        for each in kinds
        for n_splits in sorted(splits)
    )
