"""A tile of logits, where it lies and what it is multiplied of."""

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from peakward.kernels.ops.linear_cross_entropy.triton.settings import Settings


@triton.jit
def place(tile, n_row_tiles, n_column_tiles, GROUP: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where a tile lies: GROUP rows of tiles at a time, column by column."""
    in_group = GROUP * n_column_tiles
    first = tile // in_group * GROUP
    height = min(n_row_tiles - first, GROUP)
    return first + tile % in_group % height, tile % in_group // height


@triton.jit
def _load(  # type: ignore[no-untyped-def]
    matrix,
    row,
    column,
    n_rows,
    width,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DESCRIBED: tl.constexpr,
):
    """A tile of a matrix, of zeros beyond it: of a descriptor, or of a pointer to (rows, width)."""
    if DESCRIBED:
        tile = matrix.load([row, column])
    else:
        rows = row + tl.arange(0, ROWS)
        columns = column + tl.arange(0, COLUMNS)
        inside = (rows < n_rows)[:, None] & (columns < width)[None, :]
        offset = rows.to(tl.int64)[:, None] * width + columns[None, :]
        tile = tl.load(matrix + offset, mask=inside, other=0.0)
    return tile


@triton.jit
def logits_of(  # type: ignore[no-untyped-def]
    hidden,
    weight,
    row,
    column,
    n_tokens,
    vocab,
    width,
    TOKENS: tl.constexpr,
    VOCAB: tl.constexpr,
    WIDTH: tl.constexpr,
    DESCRIBED: tl.constexpr,
):
    """A tile of hidden·weightᵀ, summed in fp32."""
    total = tl.zeros([TOKENS, VOCAB], tl.float32)
    for at in range(0, width, WIDTH):
        a = _load(hidden, row, at, n_tokens, width, TOKENS, WIDTH, DESCRIBED)
        b = _load(weight, column, at, vocab, width, VOCAB, WIDTH, DESCRIBED)
        total = tl.dot(a, b.T, total, input_precision="ieee")
    return total


def matrix_of(matrix: Tensor, rows: int, columns: int, cut: Settings) -> Tensor | TensorDescriptor:
    """The argument by which a kernel is given a matrix whose tiles are (rows, columns)."""
    return TensorDescriptor.from_tensor(matrix, [rows, columns]) if cut.described else matrix
