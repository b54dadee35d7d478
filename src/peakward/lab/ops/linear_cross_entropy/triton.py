"""A projection onto the vocabulary whose logits stay in the registers that they were computed in.

`…_partials` computes a tile of logits and leaves of every row of it the maximum and the sum of
exponentials, 8 bytes for block_vocab logits; `…_combine` puts a row's together (Wijmans et al. 2024,
"Cut Your Losses in Large-Vocabulary Language Models", algorithm 2, without its locks: a tile has a
place of its own, so that the result is the same every time). `…_gradient` computes a tile again and
stores its gradient.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

LOWEST: tl.constexpr = tl.constexpr(-3.4028234663852886e38)
COMBINED_TOKENS = 32


class Settings(NamedTuple):
    """How products are cut into tiles."""

    block_tokens: int
    block_vocab: int
    block_width: int
    group: int
    """Tiles of tokens that share a tile of the weight while it is in the L2."""
    num_warps: int
    num_stages: int
    described: bool
    """Whether tiles are moved by tensor descriptors, which compute capability 9.0 brought: before
    it Triton puts loads of single elements in their place."""


def settings_for(dtype: torch.dtype, capability: int) -> Settings:
    """Tiles of fp16 and bf16 for the tensor cores; fp32 runs without them.

    Args:
        capability: ten times the compute capability.
    """
    described = capability >= 90
    if dtype == torch.float32:
        return Settings(64, 64, 16, 8, num_warps=8, num_stages=2, described=described)
    if described:
        return Settings(128, 256, 64, 8, num_warps=8, num_stages=3, described=True)
    return Settings(128, 128, 32, 8, num_warps=8, num_stages=4, described=False)


def gradient_settings_for(dtype: torch.dtype, capability: int) -> Settings:
    """As `settings_for`, of tiles that are written too: smaller ones, two to a multiprocessor, so that
    one writes while the other multiplies (H100, widths 768 to 4096: 1.1 to 1.2 times as fast)."""
    whole = settings_for(dtype, capability)
    if dtype == torch.float32 or capability < 90:
        return whole
    return Settings(128, 128, 64, 16, num_warps=4, num_stages=3, described=True)


def _capability() -> int:
    if triton.knobs.runtime.interpret:
        return 90
    return triton.runtime.driver.active.get_current_target().arch


@triton.jit
def _place(n_row_tiles, n_column_tiles, GROUP: tl.constexpr):  # type: ignore[no-untyped-def]
    """The tile of this program: GROUP rows of tiles at a time, column by column."""
    tile = tl.program_id(0)
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
def _logits(  # type: ignore[no-untyped-def]
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


@triton.jit
def _linear_cross_entropy_partials(  # type: ignore[no-untyped-def]
    hidden,
    weight,
    targets_ptr,
    partials_ptr,
    picked_ptr,
    n_tokens,
    vocab,
    width,
    TOKENS: tl.constexpr,
    VOCAB: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    DESCRIBED: tl.constexpr,
):
    n_column_tiles = tl.cdiv(vocab, VOCAB)
    row_tile, column_tile = _place(tl.cdiv(n_tokens, TOKENS), n_column_tiles, GROUP)
    x = _logits(
        hidden, weight, row_tile * TOKENS, column_tile * VOCAB,
        n_tokens, vocab, width, TOKENS, VOCAB, WIDTH, DESCRIBED,
    )  # fmt: skip
    row = row_tile * TOKENS + tl.arange(0, TOKENS)
    column = column_tile * VOCAB + tl.arange(0, VOCAB)
    inside = row < n_tokens
    x = tl.where((column < vocab)[None, :], x, -float("inf"))
    best = tl.maximum(tl.max(x, axis=1), LOWEST)
    total = tl.sum(tl.exp(x - best[:, None]), axis=1)
    at_ptr = partials_ptr + 2 * column_tile.to(tl.int64) * n_tokens + row
    tl.store(at_ptr, best, mask=inside)
    tl.store(at_ptr + n_tokens, total, mask=inside)
    target = tl.load(targets_ptr + row, mask=inside, other=-1)
    here = (target >= column_tile * VOCAB) & (target < vocab)
    here = here & (target < column_tile * VOCAB + VOCAB)
    picked = tl.sum(tl.where(column[None, :] == target[:, None], x, 0.0), axis=1)
    tl.store(picked_ptr + row, picked, mask=inside & here)


@triton.jit
def _linear_cross_entropy_combine(  # type: ignore[no-untyped-def]
    partials_ptr,
    picked_ptr,
    targets_ptr,
    losses_ptr,
    sums_ptr,
    n_tokens,
    n_tiles,
    vocab,
    ignore_index,
    TOKENS: tl.constexpr,
):
    """Of each row its loss, its maximum and its sum of exponentials."""
    row = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    inside = row < n_tokens
    top = tl.full([TOKENS], LOWEST, tl.float32)
    total = tl.zeros([TOKENS], tl.float32)
    for tile in range(n_tiles):
        at_ptr = partials_ptr + 2 * tl.cast(tile, tl.int64) * n_tokens + row
        its_top = tl.load(at_ptr, mask=inside, other=LOWEST)
        its_total = tl.load(at_ptr + n_tokens, mask=inside, other=0.0)
        best = tl.maximum(top, its_top)
        total = total * tl.exp(top - best) + its_total * tl.exp(its_top - best)
        top = best
    target = tl.load(targets_ptr + row, mask=inside, other=ignore_index)
    known = (target >= 0) & (target < vocab)
    picked = tl.load(picked_ptr + row, mask=inside & known, other=float("nan"))
    loss = tl.log(total) - (picked - top)
    tl.store(losses_ptr + row, tl.where(target == ignore_index, 0.0, loss), mask=inside)
    tl.store(sums_ptr + 2 * row, top, mask=inside)
    tl.store(sums_ptr + 2 * row + 1, total, mask=inside)


@triton.jit
def _linear_cross_entropy_gradient(  # type: ignore[no-untyped-def]
    hidden,
    weight,
    gradient,
    targets_ptr,
    sums_ptr,
    count_ptr,
    grad_loss_ptr,
    n_tokens,
    vocab,
    first_column,
    n_columns,
    width,
    stride,
    ignore_index,
    TOKENS: tl.constexpr,
    VOCAB: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    DESCRIBED: tl.constexpr,
):
    """(softmax - one-hot)·grad_loss / count of the columns from `first_column` on."""
    row_tile, column_tile = _place(tl.cdiv(n_tokens, TOKENS), tl.cdiv(n_columns, VOCAB), GROUP)
    column = first_column + column_tile * VOCAB
    row = row_tile * TOKENS + tl.arange(0, TOKENS)
    inside = row < n_tokens
    target = tl.load(targets_ptr + row, mask=inside, other=ignore_index)
    best = tl.load(sums_ptr + 2 * row, mask=inside, other=0.0)
    total = tl.load(sums_ptr + 2 * row + 1, mask=inside, other=1.0)
    counts = target != ignore_index
    known = (target >= 0) & (target < vocab)
    scale = tl.div_rn(tl.load(grad_loss_ptr).to(tl.float32), tl.load(count_ptr))
    scale = tl.where(known, scale, float("nan"))
    weight_of_row = tl.div_rn(scale, total)
    x = _logits(
        hidden, weight, row_tile * TOKENS, column,
        n_tokens, vocab, width, TOKENS, VOCAB, WIDTH, DESCRIBED,
    )  # fmt: skip
    slope = tl.exp(x - best[:, None]) * weight_of_row[:, None]
    hit = (column + tl.arange(0, VOCAB))[None, :] == target[:, None]
    slope = tl.where(hit, slope - scale[:, None], slope)
    slope = tl.where(counts[:, None], slope, 0.0)
    if DESCRIBED:
        gradient.store([row_tile * TOKENS, column_tile * VOCAB], slope.to(gradient.dtype))
    else:
        columns = column_tile * VOCAB + tl.arange(0, VOCAB)
        at_ptr = gradient + row.to(tl.int64)[:, None] * stride + columns[None, :]
        within = inside[:, None] & (columns < n_columns)[None, :]
        tl.store(at_ptr, slope.to(gradient.dtype.element_ty), mask=within)


def losses(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    ignore_index: int,
    settings: Settings | None = None,
) -> tuple[Tensor, Tensor]:
    """Of every row its loss, (tokens,), and the maximum m and Σ exp(logits - m), (tokens, 2); fp32.

    Args:
        hidden: (tokens, d), weight: (vocab, d), both contiguous, rows of whole 16 bytes.
    """
    (n_tokens, width), vocab = hidden.shape, weight.shape[0]
    cut = settings or settings_for(hidden.dtype, _capability())
    n_tiles = triton.cdiv(vocab, cut.block_vocab)
    partials = hidden.new_empty(n_tiles, 2, n_tokens, dtype=torch.float32)
    picked, each = partials.new_empty(2, n_tokens).unbind()
    sums = partials.new_empty(n_tokens, 2)
    if not n_tokens:
        return each, sums
    _linear_cross_entropy_partials[(triton.cdiv(n_tokens, cut.block_tokens) * n_tiles,)](
        _matrix(hidden, cut.block_tokens, cut.block_width, cut),
        _matrix(weight, cut.block_vocab, cut.block_width, cut),
        targets,
        partials,
        picked,
        n_tokens,
        vocab,
        width,
        **_meta(cut),
    )
    _linear_cross_entropy_combine[(triton.cdiv(n_tokens, COMBINED_TOKENS),)](
        partials,
        picked,
        targets,
        each,
        sums,
        n_tokens,
        n_tiles,
        vocab,
        ignore_index,
        TOKENS=COMBINED_TOKENS,
        num_warps=1,
    )
    return each, sums


def gradient(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    sums: Tensor,
    count: Tensor,
    grad_loss: Tensor,
    out: Tensor,
    *,
    first_column: int,
    ignore_index: int,
    settings: Settings | None = None,
) -> None:
    """Writes the gradient of the logits of out's columns, the first of which is `first_column`.

    Args:
        sums: from `losses`; count, grad_loss: scalars.
        out: (tokens, columns), rows apart by whole 16 bytes.
    """
    (n_tokens, width), n_columns = hidden.shape, out.shape[1]
    cut = settings or gradient_settings_for(hidden.dtype, _capability())
    n_tiles = triton.cdiv(n_tokens, cut.block_tokens) * triton.cdiv(n_columns, cut.block_vocab)
    _linear_cross_entropy_gradient[(n_tiles,)](
        _matrix(hidden, cut.block_tokens, cut.block_width, cut),
        _matrix(weight, cut.block_vocab, cut.block_width, cut),
        _matrix(out, cut.block_tokens, cut.block_vocab, cut),
        targets,
        sums,
        count,
        grad_loss,
        n_tokens,
        weight.shape[0],
        first_column,
        n_columns,
        width,
        out.stride(0),
        ignore_index,
        **_meta(cut),
    )


def _matrix(matrix: Tensor, rows: int, columns: int, cut: Settings) -> Tensor | TensorDescriptor:
    """What a kernel is handed of a matrix whose tiles are (rows, columns)."""
    return TensorDescriptor.from_tensor(matrix, [rows, columns]) if cut.described else matrix


def _meta(cut: Settings) -> dict[str, int]:
    return {
        "TOKENS": cut.block_tokens,
        "VOCAB": cut.block_vocab,
        "WIDTH": cut.block_width,
        "GROUP": cut.group,
        "DESCRIBED": cut.described,
        "num_warps": cut.num_warps,
        "num_stages": cut.num_stages,
    }
