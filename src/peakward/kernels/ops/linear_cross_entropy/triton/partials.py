"""The losses, without logits in memory."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from peakward.kernels.ops.linear_cross_entropy.triton.settings import (
    Settings,
    capability_here,
    meta,
    programs,
    settings_for,
)
from peakward.kernels.ops.linear_cross_entropy.triton.tiles import logits_of, matrix_of, place
from peakward.kernels.ops.recording import launch

LOWEST: tl.constexpr = tl.constexpr(-3.4028234663852886e38)
COMBINED_TOKENS = 32


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
    n_programs,
    TOKENS: tl.constexpr,
    VOCAB: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    DESCRIBED: tl.constexpr,
    RESIDENT: tl.constexpr,
):
    n_row_tiles, n_column_tiles = tl.cdiv(n_tokens, TOKENS), tl.cdiv(vocab, VOCAB)
    n_tiles = n_row_tiles * n_column_tiles
    for tile in tl.range(tl.program_id(0), n_tiles, n_programs, flatten=RESIDENT):
        row_tile, column_tile = place(tile, n_row_tiles, n_column_tiles, GROUP)
        x = logits_of(
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
    """Writes the loss, the maximum and the sum of exponentials of each row."""
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


def losses(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    ignore_index: int,
    settings: Settings | None = None,
) -> tuple[Tensor, Tensor]:
    """The loss of every row, (tokens,), and its maximum m and Σ exp(logits - m), (tokens, 2); fp32.

    Args:
        hidden: (tokens, d), weight: (vocab, d), both contiguous, rows of whole 16 bytes.
    """
    (n_tokens, width), vocab = hidden.shape, weight.shape[0]
    cut = settings or settings_for(hidden.dtype, capability_here())
    n_tiles = triton.cdiv(vocab, cut.block_vocab)
    partials = hidden.new_empty(n_tiles, 2, n_tokens, dtype=torch.float32)
    picked, each = partials.new_empty(2, n_tokens).unbind()
    sums = partials.new_empty(n_tokens, 2)
    if not n_tokens:
        return each, sums
    n_programs = programs(n_tokens, vocab, cut, hidden.device)
    launch(
        _linear_cross_entropy_partials,
        (n_programs,),
        matrix_of(hidden, cut.block_tokens, cut.block_width, cut),
        matrix_of(weight, cut.block_vocab, cut.block_width, cut),
        targets,
        partials,
        picked,
        n_tokens,
        vocab,
        width,
        n_programs,
        **meta(cut),
    )
    launch(
        _linear_cross_entropy_combine,
        (triton.cdiv(n_tokens, COMBINED_TOKENS),),
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
