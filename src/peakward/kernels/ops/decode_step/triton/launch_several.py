"""Starts the kernels of a step with several rows of activations. `launch` says why their order is safe."""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from peakward.kernels.ops.decode_step.triton.launch import Held, Matrix, Then
from peakward.kernels.ops.decode_step.triton.settings import RowsCut
from peakward.kernels.ops.decode_step.triton.several import (
    decode_step_rows_added,
    decode_step_rows_embedded,
    decode_step_rows_gated,
    decode_step_rows_logits,
    decode_step_rows_rotated,
)
from peakward.kernels.ops.decode_step.triton.stored import INT4, WORDS
from peakward.kernels.ops.dependent import dependent
from peakward.kernels.ops.recording import launch

MOST_ROWS = 16
EMBEDDED = 1024
"""The most columns of a row that a program of the embedding takes."""


class Normed(NamedTuple):
    """Rows as the product behind a norm takes them: multiplied by the norm's gain, and what the norm's factor
    is made of."""

    rows: Tensor
    """(m, k)."""
    squares: Tensor
    """(blocks, 8 or 16) of fp32: the sums of squares, before the gain, of blocks of each row; 0 of further
    rows."""
    eps: float


def padded(m: int) -> int:
    """The rows that a product has for m of activations."""
    return 8 if m <= 8 else MOST_ROWS


def normed_of(x: Tensor, eps: float, n_blocks: int) -> Normed:
    """Room for what a kernel of so many blocks leaves of x."""
    squares = x.new_zeros((n_blocks, padded(len(x))), dtype=torch.float32)
    return Normed(torch.empty_like(x), squares, eps)


def embedding_blocks(width: int) -> int:
    """The blocks in which `embedded` leaves a row."""
    return triton.cdiv(width, EMBEDDED)


class Pieces(NamedTuple):
    """Room for the sums of programs that share the columns of a block."""

    parts: Tensor
    """(blocks, splits, block, 8 or 16) of fp32."""
    arrived: Tensor
    """(blocks,) of int32: zeros."""


def pieces_of(out: Tensor, cut: RowsCut) -> Pieces:
    """Room for a product into out (m, n)."""
    n_blocks = triton.cdiv(out.shape[1], cut.block)
    size = (n_blocks, cut.splits, cut.block, padded(len(out)))
    parts = out.new_empty(size if cut.splits > 1 else 1, dtype=torch.float32)
    return Pieces(parts, out.new_zeros(n_blocks, dtype=torch.int32))


def first_of(matrix: Matrix, cut: RowsCut, n_bytes: int) -> Then:
    """Some n_bytes of a matrix: the columns that its programs take first, of all rows; in int4 as many groups
    of them as fit."""
    stored, splits = matrix.stored.view(torch.uint8), cut.splits
    if matrix.format_ == INT4.value:
        tile_bytes, stride = matrix.n * 4 * int(WORDS.value), stored.nbytes // splits
        each = min(n_bytes // splits, stride) // tile_bytes * tile_bytes
        return Then(stored, splits, stride, each if stride % 16 == 0 else 0)
    item = matrix.stored.element_size()
    stride = matrix.k * item // splits
    each = min(n_bytes // (matrix.n * splits) // (cut.step * item) * (cut.step * item), stride)
    # The instruction takes addresses and sizes in 16 bytes.
    return Then(stored, matrix.n * splits, stride, each if stride % 16 == each % 16 == 0 else 0)


def embedded(ids: Tensor, table: Tensor, out: Tensor, gain: Tensor, to: Normed) -> None:
    """Rows of the table for ids (m,), into out (m, d_model) and, for the norm of that gain, into `to`."""
    m, width = out.shape
    block = min(EMBEDDED, triton.next_power_of_2(width))
    launch(
        decode_step_rows_embedded,
        (m, triton.cdiv(width, block)),
        ids,
        table,
        out,
        gain,
        to.rows,
        to.squares,
        WIDTH=width,
        ROWS=padded(m),
        BLOCK=block,
        DEPENDENT=dependent()["DEPENDENT"],
        num_warps=4,
    )


def rotated(
    x: Normed,
    matrix: Matrix,
    bias: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    position: Tensor,
    q: Tensor,
    held: Held,
    *,
    cut: RowsCut,
) -> None:
    """Projection of the norm of x (m, d_model) and rotation: queries to q (m, heads, head_dim), keys and
    values into what sequences hold, or behind the queries of their row (see `Held.n_heads`); cos and sin
    (capacity, head_dim / 2).

    The m / sequences rows of a sequence are new tokens beside one another, the first at its `position`
    (sequences,)."""
    launch(
        decode_step_rows_rotated,
        (triton.cdiv(matrix.n, cut.block),),
        x.rows,
        x.squares,
        _stored(matrix),
        matrix.scale,
        bias,
        cos,
        sin,
        position,
        q,
        *held.written,
        len(q),
        matrix.n,
        len(x.squares),
        held.room,
        x.eps,
        held.n_heads(q),
        held.kv_heads,
        NEW=len(q) // held.n_sequences,
        HALF=q.shape[2] // 2,
        HAS_BIAS=bias is not None,
        PAGE_SIZE=held.page_size,
        SUMS=triton.next_power_of_2(len(x.squares)),
        **_sizes(matrix, cut, len(q)),
    )


def gated(x: Normed, matrix: Matrix, out: Tensor, *, then: Then, cut: RowsCut) -> None:
    """silu(gate) · up of the norm of x (m, d_model), into out (m, d_ff); the matrix has gate's rows, then
    up's."""
    launch(
        decode_step_rows_gated,
        (triton.cdiv(matrix.n, cut.block),),
        x.rows,
        x.squares,
        _stored(matrix),
        matrix.scale,
        out,
        *then,
        len(out),
        matrix.n,
        len(x.squares),
        x.eps,
        HALF=matrix.n // 2,
        SUMS=triton.next_power_of_2(len(x.squares)),
        **_sizes(matrix, cut, len(out)),
    )


def added(
    x: Tensor,
    matrix: Matrix,
    out: Tensor,
    gain: Tensor,
    to: Normed,
    *,
    pieces: Pieces,
    then: Then,
    cut: RowsCut,
) -> None:
    """x (m, k) times the transposed matrix, added to out (m, n), which for the norm of that gain goes into
    `to` as well."""
    launch(
        decode_step_rows_added,
        (triton.cdiv(matrix.n, cut.block), cut.splits),
        x,
        _stored(matrix),
        matrix.scale,
        out,
        gain,
        to.rows,
        to.squares,
        *pieces,
        *then,
        len(out),
        matrix.n,
        SPLITS=cut.splits,
        **_sizes(matrix, cut, len(out)),
    )


def logits(x: Normed, matrix: Matrix, out: Tensor, *, cut: RowsCut) -> None:
    """The norm of x (m, k) times the transposed matrix, into out (m, n). Into an out of int64, (m, programs),
    go the largest keys of each program's logits instead (see `chosen`)."""
    launch(
        decode_step_rows_logits,
        (triton.cdiv(matrix.n, cut.block),),
        x.rows,
        x.squares,
        _stored(matrix),
        matrix.scale,
        out,
        len(out),
        matrix.n,
        len(x.squares),
        x.eps,
        CHOOSES=out.dtype == torch.int64,
        SUMS=triton.next_power_of_2(len(x.squares)),
        **_sizes(matrix, cut, len(out)),
    )


def _stored(matrix: Matrix) -> Tensor:
    """As it is multiplied: elements, or words of int4."""
    return matrix.words if matrix.format_ == INT4.value else matrix.stored


def _sizes(matrix: Matrix, cut: RowsCut, m: int) -> dict[str, Any]:
    return {
        "K": matrix.k,
        "FORMAT": matrix.format_,
        "ROWS": padded(m),
        "BLOCK": cut.block,
        "COLUMNS": cut.columns,
        "PARTS": cut.parts,
        "STAGES": cut.stages,
        "AHEAD": min(cut.ahead * cut.step, matrix.k) if dependent()["DEPENDENT"] else 0,
        "WARPS": cut.warps,
        "num_warps": cut.warps,
        "num_stages": 1,
        **dependent(),
    }
