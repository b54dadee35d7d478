"""How the products of a step are cut up; no result depends on it beyond rounding."""

import math
from typing import NamedTuple

import triton


class Cut(NamedTuple):
    """The sizes of a product's launch."""

    block: int
    """Rows of the matrix that a program takes at once, a power of two."""
    lanes: int
    """Lanes that share a row: 32 or a power of two above it."""
    depth: int
    """Tiles of a program on their way to registers."""
    ahead: int
    """Blocks of a program that are brought into the L2 before the wait."""
    warps: int = 8
    programs: int = 1
    """The programs of a multiprocessor."""
    registers: int | None = None
    """The most of a thread, where the compiler would take more than leave room for all programs."""
    stays_ahead: bool = False
    """Whether a program goes on to bring the block that is so many ahead, with each that it multiplies."""

    def chunks(self, k: int, per_word: int) -> int:
        """The steps in which a row's lanes take its columns, four words each."""
        return triton.cdiv(k, 4 * self.lanes * per_word)


class RowsCut(NamedTuple):
    """The sizes of a product's launch for several rows of activations."""

    block: int
    """Rows of the matrix that a program takes, a power of two; it takes no others behind them."""
    columns: int
    """Columns of a part of the program's warps at once; 128 of int4."""
    parts: int = 1
    """Parts of a program's warps, each with columns of its own: at most as many as warps."""
    stages: int = 4
    """Steps of columns on their way to shared memory, the one that is multiplied among them."""
    warps: int = 4
    ahead: int = 4
    """Steps of columns that are brought into the L2 before the wait."""
    splits: int = 1
    """Programs that share the columns of a block, of the products that a residual is added to."""

    @property
    def step(self) -> int:
        """Columns of all parts."""
        return self.columns * self.parts


class Split(NamedTuple):
    """The sizes of attention's launch."""

    splits: int
    block: int = 64
    warps: int = 4
    stages: int = 1
    ahead: int = 1024
    """Positions of a piece that are brought into the L2 before the wait."""
    registers: int | None = None
    """The most of a thread on pages, where the compiler would take more than leave room for all programs."""


POSITIONS_AHEAD = 1 << 16
"""The most positions that all programs of attention bring into the L2: 16 MiB at a head_dim of 64."""


class _Rule(NamedTuple):
    """The cut of matrices of up to so many columns and rows that no rule before it takes."""

    columns: float
    rows: float
    cut: Cut


# Of a sweep over the products of `2.7B`, `small` and Llama-2-7B on an H200, in chains over cold weights and
# then, the fastest of each and those alike that bring more or less ahead, in whole steps. A lane that held
# more of the activations would lack registers for weights on their way; of int4 four programs of 128
# registers a thread fill a multiprocessor. What is brought into the L2 behind the wait delays what is waited
# for: a step of `2.7B` in bf16 takes 1,935 µs where `up` brings no block, and 2,046 where it always brings
# the second next one (`2026-11-29-h200-decode-speed-cuts-2`). int8 of 3,072 to 6,144 columns is as an H100's
# sweep left it, but that no block is brought. More than 12,000 columns were never timed: their cuts are those
# that leave room for all programs and spill nothing.
_DENSE = (
    _Rule(1024, math.inf, Cut(8, 64, 2, 1, 4, 3)),
    _Rule(6144, math.inf, Cut(4, 128, 3, 0, 4, 4)),
    _Rule(12_000, 3000, Cut(2, 256, 3, 0, 8, 2)),
    _Rule(16_000, math.inf, Cut(4, 256, 2, 0, 8, 2)),
    _Rule(math.inf, math.inf, Cut(2, 256, 2, 0, 8, 2, 128)),
)
_INT8 = (
    _Rule(1024, 1500, Cut(8, 64, 1, 0, 4, 5)),
    _Rule(1024, math.inf, Cut(32, 32, 2, 1, 8, 1)),
    _Rule(3072, 5000, Cut(8, 64, 3, 1, 4, 4)),
    _Rule(3072, 9000, Cut(16, 32, 3, 0, 4, 4, 128)),
    _Rule(3072, math.inf, Cut(16, 32, 3, 0, 8, 2)),
    _Rule(6144, math.inf, Cut(8, 128, 2, 0, 8, 2)),
    _Rule(12_000, math.inf, Cut(4, 256, 3, 1, 8, 2, stays_ahead=True)),
    _Rule(math.inf, math.inf, Cut(4, 256, 3, 1, 8, 2, 128, stays_ahead=True)),
)
_INT4 = (
    _Rule(1024, 1500, Cut(8, 32, 1, 1, 4, 4)),
    _Rule(1024, math.inf, Cut(16, 32, 1, 1, 4, 4, 128)),
    _Rule(3072, 5000, Cut(8, 32, 1, 1, 4, 4)),
    _Rule(3072, 9000, Cut(16, 32, 1, 0, 4, 4, 128)),
    _Rule(3072, math.inf, Cut(16, 32, 1, 2, 4, 4, 128)),
    _Rule(6144, 5000, Cut(8, 64, 1, 1, 4, 4)),
    _Rule(6144, math.inf, Cut(8, 64, 2, 0, 4, 4, 128)),
    _Rule(12_000, 3000, Cut(4, 128, 1, 2, 4, 3, stays_ahead=True)),
    _Rule(12_000, math.inf, Cut(4, 128, 1, 1, 4, 4, 128)),
    _Rule(math.inf, math.inf, Cut(4, 256, 1, 1, 8, 2, 128)),
)


def cut_for(*, n: int, k: int, per_word: int) -> Cut:
    """The cut of a matrix (n, k), of which a word of 32 bits has `per_word` columns."""
    rules = {4: _INT8, 8: _INT4}.get(per_word, _DENSE)
    # Elements in 32 bits are as wide as two in 16.
    columns = 2 * k if per_word == 1 else k
    cut = next(each.cut for each in rules if columns <= each.columns and n <= each.rows)
    return cut._replace(depth=min(cut.depth, cut.chunks(k, per_word)))


THEN_BYTES = 4 << 20
"""Bytes of the next matrix that a kernel brings into the L2 behind the last of its own."""
MULTIPROCESSORS = 132
"""Those of an H100 and an H200, on which cuts were swept."""
LEAST_WAVES = 0.7
"""Blocks of 64 rows over the multiprocessors: fewer leave too many of these without one."""


def rows_cut_for(*, n: int, k: int, per_word: int) -> RowsCut:
    """The cut of a matrix (n, k) for several rows of activations; `per_word` as in `cut_for`.

    Each program reads all of x. Where the matrix has too few rows to fill a GPU by blocks of many, dense
    blocks are of few, and of fewer bits their columns are shared: beside 16 rows of int4, 16 of x are four
    times as many bytes. Dense cuts were swept with 8 rows of `2.7B` in bf16 on an H200, a dozen of each
    matrix; those of int8 and int4 were not.
    """
    columns = {1: 64}.get(per_word, 128)
    stages = 6 if per_word == 8 else 4
    waves = n / (64 * MULTIPROCESSORS)
    is_wide = waves >= LEAST_WAVES
    if is_wide and per_word <= 2:
        # µs by blocks of 64 with 4 steps ahead, of 64 with one, and of 32: qkv (0.9 waves) 14.6, 14.1, 16.7;
        # head (1.2) 17.2, 17.0, 18.8; up (2.4, so that some multiprocessors have 3 blocks) 36.9, 36.4, 28.2.
        few = RowsCut(32, columns, stages=5)
        return few if waves > 2 else RowsCut(64, columns, stages=stages, ahead=1)
    if is_wide or k < 4 * columns:
        return RowsCut(64 if is_wide else 16, columns, stages=stages)
    if per_word == 8:
        return RowsCut(64, columns, stages=stages, splits=4)
    if per_word == 4:
        return RowsCut(32, columns, parts=2, splits=2)
    # µs by 4 and 6 stages: down (k of 10,240) 19.7, 18.9; out (2,560) 8.4, 8.8.
    return RowsCut(16, columns // 2, parts=4, stages=6 if k > 6144 else 4)


def split_for(
    *, n_pairs: int, capacity: int, n_multiprocessors: int, narrow: bool = False
) -> Split:
    """Two programs of a multiprocessor at most where each then has one block of keys; where each would have
    more, four, with the next blocks on their way.

    µs of a step of `2.7B` with int4 weights on an H200, by the first form and by the second: behind 4,096
    positions 1,621 and 1,579 in bf16, 1,630 and 1,431 in int8, behind 16,384 3,082 and 2,573, 2,927 and
    2,117. Blocks of 64 for 128 make twice as many pieces to join: of 12 heads behind 1,024 positions 7.1 µs
    for 5.3.

    Args:
        n_pairs: sequences times heads of keys.
        capacity: the most positions of a sequence.
        narrow: whether the cache holds a byte an element.
    """
    splits, stages = triton.next_power_of_2(triton.cdiv(capacity, 128)), 1
    block, registers = 128 if capacity > 64 else 64, None
    if splits > _most(2 * n_multiprocessors // n_pairs):
        # Of three blocks in 16 bits on their way only three programs' would fit. On pages the compiler takes
        # 138 registers beside int8 (triton 3.6), so that three programs fit: 4 × 4,096 positions of `2.7B`
        # then take 56 µs for 40 (`2026-11-29-h200-kernel-trials-decode-pages`).
        splits, block = _most(4 * n_multiprocessors // n_pairs), 64
        stages, registers = (3, 128) if narrow else (2, None)
    return Split(
        splits=splits,
        block=block,
        stages=stages,
        ahead=POSITIONS_AHEAD // (n_pairs * splits) // 8 * 8,
        registers=registers,
    )


def _most(n_programs: int) -> int:
    """The pieces of a pair that so many programs can have: a power of two, and 32 at most."""
    return 1 << max(1, min(n_programs, 32)).bit_length() - 1
