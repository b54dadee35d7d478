"""The sum of two matrices that lie in memory in several ways: the simplest elementwise kernel."""

from torch import Tensor

from peakward.lab.micro.matmul_operands import (
    Lay,
    Work,
    as_stored,
    expanded,
    on_copy,
    strided_columns,
    strided_rows,
    transposed,
)
from peakward.lab.micro.piece import Piece, chosen, drawn, sizes
from peakward.records.case import MicroCase


def expanded_column(stored: Tensor) -> Tensor:
    """One stored column that stands for all columns."""
    return stored[:, :1].expand_as(stored)


def total(a: Tensor, b: Tensor) -> Tensor:
    """a + b."""
    return a + b


PIECES: dict[str, tuple[Work, Lay, Lay]] = {
    "contiguous": (total, as_stored, as_stored),
    "both transposed": (total, transposed, transposed),
    "one transposed": (total, transposed, as_stored),
    "one transposed (copied)": (on_copy(total), transposed, as_stored),
    "strided rows": (total, strided_rows, strided_rows),
    "strided columns": (total, strided_columns, strided_columns),
    "an expanded row": (total, expanded, as_stored),
    "an expanded column": (total, expanded_column, as_stored),
}
"""The function to run and the layouts of the two matrices, by piece."""


def build(case: MicroCase) -> Piece:
    """Builds a case of sizes (n,): two matrices (n, n). A piece that copies does so in every step."""
    (n,) = sizes(case, "n")
    work, lay_left, lay_right = chosen(case, PIECES)
    left, right = drawn(case, 2, n, n)
    a, b = lay_left(left), lay_right(right)
    return Piece(
        run=lambda: work(a, b),
        inputs=(a, b),
        flops=n * n,
        oracle=lambda: total(a.double(), b.double()),
    )
