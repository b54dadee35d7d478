"""Starts the kernels. Each but the first is launched while the one before it still runs.

Why that is safe: every program of every kernel waits before it reads or writes what a kernel of the chain
wrote, and the wait ends when all programs of the kernel before have ended and their writes are visible. A
program ends only after its own wait. So behind its wait a kernel finds all earlier kernels complete, and
none of them can still read what it writes. Before the wait only weights, positions and addresses are
touched, which no kernel writes but the last one, and the first waits in full for that; a prefetch into the
L2 reads nothing.
"""

import math
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton import knobs

from peakward.kernels.ops.decode_step.triton.attention import decode_step_attention
from peakward.kernels.ops.decode_step.triton.chosen import decode_step_chosen
from peakward.kernels.ops.decode_step.triton.products import (
    decode_step_embedded,
    decode_step_gated,
    decode_step_product,
    decode_step_rotated,
)
from peakward.kernels.ops.decode_step.triton.settings import Cut, Split
from peakward.kernels.ops.decode_step.triton.stored import DENSE, INT4, INT8, WORDS
from peakward.kernels.ops.dependent import dependent
from peakward.kernels.ops.recording import launch

LOG2_E = math.log2(math.e)


class Matrix(NamedTuple):
    """A stored matrix (n, k): dense elements; int8 (n, k) with scales (1, n); or int4 as
    `quantized_matmul.reference.packed` with scales (k / 128, n)."""

    stored: Tensor
    scale: Tensor | None
    n: int
    k: int

    @property
    def format_(self) -> int:
        if self.scale is None:
            return int(DENSE.value)
        return int(INT8.value if self.stored.dtype == torch.int8 else INT4.value)

    @property
    def per_word(self) -> int:
        """The columns of 32 bits."""
        if self.format_ == DENSE.value:
            return 4 // self.stored.element_size()
        return 4 if self.format_ == INT8.value else 8

    @property
    def words(self) -> Tensor:
        """The elements as words of 32 bits."""
        return self.stored.view(torch.int32)


class Held(NamedTuple):
    """The keys and values of a layer: (sequences, kv_heads, capacity, head_dim), or with a table pages
    (pages, kv_heads, page_size, head_dim), without gaps; in the type of activations, or in int8 with a scale
    in fp32 of each key and value."""

    keys: Tensor
    values: Tensor
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None
    """Both (sequences, kv_heads, capacity) or (pages, kv_heads, page_size), or neither."""
    block_table: Tensor | None = None
    """(sequences, most pages of one) of int32, contiguous."""

    @property
    def n_sequences(self) -> int:
        return len(self.keys if self.block_table is None else self.block_table)

    @property
    def kv_heads(self) -> int:
        return self.keys.shape[1]

    @property
    def page_size(self) -> int:
        """0 of a cache without pages."""
        return 0 if self.block_table is None else self.keys.shape[2]

    def n_heads(self, q: Tensor) -> int:
        """The heads of queries in q (rows, heads, head_dim). Keys and values that are to be rounded stand
        behind the queries of their row, because a head's scale is known when all of its elements are."""
        return q.shape[1] - (0 if self.k_scale is None else 2 * self.kv_heads)

    @property
    def written(self) -> "tuple[Tensor | None, Tensor | None, Tensor | None]":
        """The keys, values and table that rotated ones are written to as they are."""
        return (self.keys, self.values, self.block_table) if self.k_scale is None else (None,) * 3

    @property
    def room(self) -> int:
        """The positions of a sequence, or the entries of its table."""
        return self.keys.shape[2] if self.block_table is None else self.block_table.shape[1]

    @property
    def capacity(self) -> int:
        """The positions that a sequence may have."""
        return self.room * max(1, self.page_size)


class Texts(NamedTuple):
    """The texts in a loop's rows, all on the device and changed in place."""

    ids: Tensor
    """(rows, 1) of int64: the newest token of each."""
    held: Tensor
    """(rows,) of int64: the tokens of each that the cache holds."""
    out: Tensor
    """(rows, places) of int64: the new tokens."""
    made: Tensor
    """(rows,) of int64: how many there are of these."""
    most: Tensor
    """(rows,) of int64: how many there will be at most."""
    ended: Tensor
    """(rows,) of bool."""
    ends: Tensor
    """Tokens that end a text, of int64."""


class Then(NamedTuple):
    """The part of a tensor that the next kernel reads first: `parts` runs of n_bytes each, `stride` bytes
    apart."""

    tensor: Tensor
    parts: int
    stride: int
    n_bytes: int


def first_of(matrix: Matrix, n_bytes: int, *, halves: bool = False) -> Then:
    """Some n_bytes of a matrix, those of its first rows; with `halves` of its first rows and of those from
    the middle on."""
    row_bytes, n_parts = matrix.k // matrix.per_word * 4, 2 if halves else 1
    n_rows = matrix.n // n_parts
    if matrix.format_ == INT4.value:
        row_bytes, n_parts = 4 * int(WORDS.value), n_parts * (matrix.k // 128)
    stride = n_rows * row_bytes
    each = min(n_bytes // n_parts, stride) // 16 * 16
    # The instruction takes addresses and sizes in 16 bytes.
    return Then(matrix.stored.view(torch.uint8), n_parts, stride, each if stride % 16 == 0 else 0)


def rotated(
    x: Tensor,
    gain: Tensor,
    eps: float,
    matrix: Matrix,
    bias: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    position: Tensor,
    q: Tensor,
    held: Held,
    *,
    cut: Cut,
    n_programs: int,
) -> None:
    """Norm of x (1, d_model), projection and rotation: queries to q (1, heads, head_dim), keys and values
    into what one sequence holds at position (1,), or behind the queries (see `Held.n_heads`); cos and sin
    (capacity, head_dim / 2)."""
    half = q.shape[2] // 2
    n_blocks = triton.cdiv(matrix.n, cut.block)
    launch(
        decode_step_rotated,
        (min(n_programs, n_blocks),),
        x,
        gain,
        matrix.words,
        matrix.scale,
        bias,
        cos,
        sin,
        position,
        q,
        *held.written,
        matrix.n,
        held.room,
        eps,
        held.n_heads(q),
        held.kv_heads,
        HALF=half,
        HAS_BIAS=bias is not None,
        PAGE_SIZE=held.page_size,
        **_sizes(matrix, cut),
    )


def gated(
    x: Tensor,
    gain: Tensor,
    eps: float,
    matrix: Matrix,
    out: Tensor,
    *,
    then: Then,
    cut: Cut,
    n_programs: int,
) -> None:
    """silu(gate) · up of the norm of x (1, d_model), into out (1, d_ff); the matrix has gate's rows, then
    up's."""
    launch(
        decode_step_gated,
        (min(n_programs, triton.cdiv(matrix.n, cut.block)),),
        x,
        gain,
        matrix.words,
        matrix.scale,
        out,
        *then,
        matrix.n,
        eps,
        HALF=matrix.n // 2,
        **_sizes(matrix, cut),
    )


def product(
    x: Tensor,
    gain: Tensor | None,
    eps: float,
    matrix: Matrix,
    out: Tensor,
    *,
    adds: bool,
    then: Then,
    cut: Cut,
    n_programs: int,
) -> None:
    """x (1, k), or with a gain its norm, times the transposed matrix: into out (1, n), or added to it.

    Into an out of int64, (1, programs), go the largest keys of each program's elements instead (see
    `chosen`)."""
    launch(
        decode_step_product,
        (min(n_programs, triton.cdiv(matrix.n, cut.block)),),
        x,
        gain,
        matrix.words,
        matrix.scale,
        out,
        *then,
        matrix.n,
        eps,
        NORMED=gain is not None,
        ADDS=adds,
        CHOOSES=out.dtype == torch.int64,
        **_sizes(matrix, cut),
    )


def attention(
    q: Tensor,
    held: Held,
    position: Tensor,
    parts: Tensor,
    shares: Tensor,
    arrived: Tensor,
    out: Tensor,
    *,
    then: Then,
    split: Split,
) -> None:
    """Attention from q (m, heads, head_dim) to what sequences hold, into out (m, heads, head_dim). Keys and
    values behind the queries (see `Held.n_heads`) are rounded and written first.

    The m / sequences rows of a sequence are new tokens beside one another, the first at its `position`
    (sequences,); each sees the positions up to its own. See the kernel for parts, shares and arrived, of
    which the last holds zeros."""
    n_sequences, kv_heads, head_dim = held.n_sequences, held.kv_heads, q.shape[2]
    group, new = held.n_heads(q) // kv_heads, len(q) // n_sequences
    # Beside keys in int8 fewer are in a product twice.
    members = max(16 if held.k_scale is None else 8, triton.next_power_of_2(new * group))
    if members >= 64:
        # In four warps, or in blocks of 128 positions, they take more registers than there are.
        split = split._replace(
            warps=max(8, split.warps), block=min(64, split.block), registers=None
        )
    native = not knobs.runtime.interpret
    launch(
        decode_step_attention,
        (n_sequences * kv_heads, split.splits),
        q,
        held.keys,
        held.values,
        held.k_scale,
        held.v_scale,
        position,
        parts,
        shares,
        arrived,
        out,
        held.block_table,
        *then,
        held.room,
        LOG2_E / math.sqrt(head_dim),
        NEW=new,
        NEWS=triton.next_power_of_2(new),
        KV_HEADS=kv_heads,
        GROUP=group,
        MEMBERS=members,
        HEAD_DIM=head_dim,
        # Products have at least 16 columns, of bytes 32.
        BLOCK_DIM=max(16 if held.k_scale is None else 32, triton.next_power_of_2(head_dim)),
        BLOCK=split.block,
        SPLITS=split.splits,
        PAGE_SIZE=held.page_size,
        AHEAD=split.ahead if native and head_dim * held.keys.element_size() % 16 == 0 else 0,
        # The instruction takes addresses and sizes in 16 bytes.
        SCALES_AHEAD=held.k_scale is not None
        and (held.page_size % 8 == 0 if held.page_size else held.room % 4 == 0),
        WARPS=split.warps,
        NATIVE=native,
        num_warps=split.warps,
        num_stages=split.stages,
        maxnreg=split.registers if held.page_size else None,
        **dependent(),
    )


def embedded(ids: Tensor, table: Tensor, out: Tensor) -> None:
    """Rows of the table for ids (m,), into out (m, d_model)."""
    m, width = out.shape
    block = min(1024, triton.next_power_of_2(width))
    launch(
        decode_step_embedded,
        (m, triton.cdiv(width, block)),
        ids,
        table,
        out,
        WIDTH=width,
        BLOCK=block,
        DEPENDENT=dependent()["DEPENDENT"],
        num_warps=4,
    )


def chosen(keys: Tensor, texts: Texts) -> None:
    """The next token of each row by the keys (rows, n) of its logits: the likeliest, and of equal ones the
    lowest, as torch.argmax has it. A row that has ended writes behind its text, and stays."""
    m, n = keys.shape
    launch(
        decode_step_chosen,
        (m,),
        keys,
        *texts,
        n,
        texts.out.stride(0),
        len(texts.ends),
        KEYS=triton.next_power_of_2(n),
        ENDS=triton.next_power_of_2(max(1, len(texts.ends))),
        num_warps=4,
        **dependent(),
    )


def _sizes(matrix: Matrix, cut: Cut) -> dict[str, Any]:
    native = not knobs.runtime.interpret
    return {
        "K": matrix.k,
        "FORMAT": matrix.format_,
        "PER_WORD": matrix.per_word,
        "BLOCK": cut.block,
        "LANES": cut.lanes,
        "CHUNKS": cut.chunks(matrix.k, matrix.per_word),
        "DEPTH": cut.depth,
        "AHEAD": cut.ahead if native else 0,
        "STAYS_AHEAD": cut.stays_ahead and cut.ahead > 0 and native,
        "WARPS": cut.warps,
        "NATIVE": native,
        "num_warps": cut.warps,
        "num_stages": 1,
        "maxnreg": cut.registers,
        **dependent(),
    }
