"""The gradient of the logits, which are computed again."""

import triton
import triton.language as tl
from torch import Tensor

from peakward.kernels.ops.linear_cross_entropy.triton.settings import (
    Settings,
    capability_here,
    gradient_settings_for,
    meta,
    programs,
)
from peakward.kernels.ops.linear_cross_entropy.triton.tiles import logits_of, matrix_of, place
from peakward.kernels.ops.recording import launch


@triton.jit
def _slope(x, column, target, best, weight, scale, counts):  # type: ignore[no-untyped-def]
    """exp(x - best)·weight - one-hot·scale of logits in the columns from `column` on; zeros in a row
    that does not count."""
    COLUMNS: tl.constexpr = x.shape[1]
    hit = (column + tl.arange(0, COLUMNS))[None, :] == target.to(tl.int32)[:, None]
    slope = tl.exp(x - best[:, None]) * weight[:, None]
    slope = tl.where(hit, slope - scale[:, None], slope)
    return tl.where(counts[:, None], slope, 0.0)


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
    n_programs,
    TOKENS: tl.constexpr,
    VOCAB: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    DESCRIBED: tl.constexpr,
    RESIDENT: tl.constexpr,
):
    """(softmax - one-hot)·grad_loss / count of the columns from `first_column` on."""
    n_row_tiles, n_column_tiles = tl.cdiv(n_tokens, TOKENS), tl.cdiv(n_columns, VOCAB)
    n_tiles = n_row_tiles * n_column_tiles
    of_loss = tl.div_rn(tl.load(grad_loss_ptr).to(tl.float32), tl.load(count_ptr))
    for tile in tl.range(tl.program_id(0), n_tiles, n_programs, flatten=RESIDENT):
        row_tile, column_tile = place(tile, n_row_tiles, n_column_tiles, GROUP)
        to_row, to_column = row_tile * TOKENS, column_tile * VOCAB
        column = first_column + to_column
        x = logits_of(
            hidden, weight, to_row, column,
            n_tokens, vocab, width, TOKENS, VOCAB, WIDTH, DESCRIBED,
        )  # fmt: skip
        row = to_row + tl.arange(0, TOKENS)
        inside = row < n_tokens
        target = tl.load(targets_ptr + row, mask=inside, other=ignore_index)
        best = tl.load(sums_ptr + 2 * row, mask=inside, other=0.0)
        total = tl.load(sums_ptr + 2 * row + 1, mask=inside, other=1.0)
        known = (target >= 0) & (target < vocab)
        scale = tl.where(known, of_loss, float("nan"))
        shared = (target, best, tl.div_rn(scale, total), scale, target != ignore_index)
        if RESIDENT:
            # Half of a tile at a time leaves shared memory for one stage of loads more.
            HALF: tl.constexpr = VOCAB // 2
            left, right = tl.split(tl.permute(tl.reshape(x, [TOKENS, 2, HALF]), [0, 2, 1]))
            slope = _slope(left, column, *shared)
            gradient.store([to_row, to_column], slope.to(gradient.dtype))
            slope = _slope(right, column + HALF, *shared)
            gradient.store([to_row, to_column + HALF], slope.to(gradient.dtype))
        elif DESCRIBED:
            slope = _slope(x, column, *shared)
            gradient.store([to_row, to_column], slope.to(gradient.dtype))
        else:
            slope = _slope(x, column, *shared)
            columns = to_column + tl.arange(0, VOCAB)
            at_ptr = gradient + row.to(tl.int64)[:, None] * stride + columns[None, :]
            within = inside[:, None] & (columns < n_columns)[None, :]
            tl.store(at_ptr, slope.to(gradient.dtype.element_ty), mask=within)


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
    cut = settings or gradient_settings_for(hidden.dtype, capability_here())
    n_programs = programs(n_tokens, n_columns, cut, hidden.device)
    stored_columns = cut.block_vocab // 2 if cut.resident else cut.block_vocab
    launch(
        _linear_cross_entropy_gradient,
        (n_programs,),
        matrix_of(hidden, cut.block_tokens, cut.block_width, cut),
        matrix_of(weight, cut.block_vocab, cut.block_width, cut),
        matrix_of(out, cut.block_tokens, stored_columns, cut),
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
        n_programs,
        **meta(cut),
    )
