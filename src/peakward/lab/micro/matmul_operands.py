"""A product of square matrices whose operands have different layouts in memory."""

from collections.abc import Callable

from torch import Tensor

from peakward.lab.micro.piece import Piece, chosen, drawn, sizes
from peakward.records.case import MicroCase


def as_stored(stored: Tensor) -> Tensor:
    """N: (n, n), row after row."""
    return stored


def transposed(stored: Tensor) -> Tensor:
    """T: column after column."""
    return stored.t()


def strided_rows(stored: Tensor) -> Tensor:
    """Every second row of twice as many: whole rows with gaps between them."""
    return stored.repeat_interleave(2, 0)[::2]


def strided_columns(stored: Tensor) -> Tensor:
    """Every second column of twice as many: a gap after each element."""
    return stored.repeat_interleave(2, 1)[:, ::2]


def expanded(stored: Tensor) -> Tensor:
    """One stored row that stands for all rows."""
    return stored[:1].expand_as(stored)


def product(a: Tensor, b: Tensor) -> Tensor:
    """a · b."""
    return a @ b


def on_copy(work: "Work") -> "Work":
    """The work after the left operand was copied to a contiguous one."""
    return lambda a, b: work(a.contiguous(), b)


Lay = Callable[[Tensor], Tensor]
Work = Callable[[Tensor, Tensor], Tensor]
PIECES: dict[str, tuple[Work, Lay, Lay]] = {
    "NN": (product, as_stored, as_stored),
    "NT": (product, as_stored, transposed),
    "TN": (product, transposed, as_stored),
    "TT": (product, transposed, transposed),
    "strided rows": (product, strided_rows, as_stored),
    "strided columns": (product, strided_columns, as_stored),
    "strided columns (copied)": (on_copy(product), strided_columns, as_stored),
    "expanded": (product, expanded, as_stored),
}
"""The function to run and the layouts of the left and the right operand, by piece."""


def build(case: MicroCase) -> Piece:
    """Builds a case of sizes (n,). A piece that copies does so in every step."""
    (n,) = sizes(case, "n")
    work, lay_left, lay_right = chosen(case, PIECES)
    left, right = drawn(case, 2, n, n)
    a, b = lay_left(left), lay_right(right)
    return Piece(
        run=lambda: work(a, b),
        inputs=(a, b),
        flops=2 * n**3,
        oracle=lambda: product(a.double(), b.double()),
    )
