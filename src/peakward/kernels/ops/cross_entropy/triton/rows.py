"""The work of one program on a row of logits.

The program streams the row. Every thread keeps the maximum and the sum of exponentials of its own
16-byte vectors (Milakov & Gimelshein 2018, algorithm 3, with a vector of VECTOR logits a step instead
of one: 1 + 1/VECTOR exponentials a logit), so threads meet once, at the row's end. A row of odd length
may begin or end inside a vector; these edges are read separately (`rows.vectors`).
"""

import triton
import triton.language as tl

from peakward.kernels.ops.rows.vectors import COMPILED, edges, whole_vectors

LOWEST: tl.constexpr = tl.constexpr(-3.4028234663852886e38)
"""The lowest number of fp32, as the first maximum. With -inf, a logit of -inf would make -inf - (-inf)."""
LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def _exp(x):  # type: ignore[no-untyped-def]
    """exp(x), or 0 where that is below 2^-126, for which `tl.exp` has three of a logit's eleven
    instructions (H100, 16,384 × 10,000 by eight warps: 122 µs for 135)."""
    if COMPILED:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;",
            "=f,f",
            [x * LOG2_E],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    else:
        return tl.exp(x)


@triton.jit
def _take_in(x, top, total):  # type: ignore[no-untyped-def]
    """x of [LANES, VECTOR] into the running maximum and the sum of exp(x - maximum), a lane."""
    best = tl.maximum(top, tl.max(x, axis=1))
    return best, total * _exp(top - best) + tl.sum(_exp(x - best[:, None]), axis=1)


@triton.jit
def sums_of_row(  # type: ignore[no-untyped-def]
    logits_ptr, at, vocab, SMOOTHS: tl.constexpr, LANES: tl.constexpr, VECTOR: tl.constexpr
):
    """The maximum of the row from `at` on, Σ exp(x - maximum) and Σ x."""
    BLOCK: tl.constexpr = LANES * VECTOR
    first, n_inside = whole_vectors(at, vocab, VECTOR)
    inside_ptr = logits_ptr + first
    lane = tl.arange(0, LANES)[:, None] * VECTOR
    offset = lane + tl.arange(0, VECTOR)[None, :]
    column, on_edge = edges(at, vocab, VECTOR)
    edge = tl.load(logits_ptr + at + column, mask=on_edge, other=-float("inf")).to(tl.float32)
    top = tl.full([LANES], LOWEST, tl.float32)
    total = tl.zeros([LANES], tl.float32)
    plain = tl.zeros([LANES], tl.float32)
    unmasked_to = n_inside // BLOCK * BLOCK
    for start in range(0, unmasked_to, BLOCK):
        x = tl.load(inside_ptr + start + offset).to(tl.float32)
        top, total = _take_in(x, top, total)
        if SMOOTHS:
            plain += tl.sum(x, axis=1)
    for start in range(unmasked_to, n_inside, BLOCK):
        inside = start + lane < n_inside
        x = tl.load(inside_ptr + start + offset, mask=inside, other=-float("inf")).to(tl.float32)
        top, total = _take_in(x, top, total)
        if SMOOTHS:
            plain += tl.sum(tl.where(inside, x, 0.0), axis=1)
    best = tl.maximum(tl.max(top, axis=0), tl.max(edge, axis=0))
    sums = tl.sum(total * tl.exp(top - best), axis=0) + tl.sum(tl.exp(edge - best), axis=0)
    return best, sums, tl.sum(plain, axis=0) + tl.sum(tl.where(on_edge, edge, 0.0), axis=0)


@triton.jit
def loss_of_row(  # type: ignore[no-untyped-def]
    logits_ptr,
    target,
    at,
    vocab,
    best,
    total,
    plain,
    smoothing,
    ignore_index,
    SMOOTHS: tl.constexpr,
):
    """log Σ exp(x) - (1 - ε)·x[target] - ε·mean(x), with the maximum taken off every x first.

    0 of an ignored row, NaN of a target that is not in the vocabulary.
    """
    known = (target >= 0) & (target < vocab)
    x = tl.load(logits_ptr + at + target, mask=known, other=float("nan")).to(tl.float32)
    loss = tl.log(total) - (x - best)
    if SMOOTHS:
        # Of a target's logit of -inf the mean is -inf too, and the difference of the two NaN.
        smoothed = loss + smoothing * (x - plain / vocab)
        loss = tl.where(loss == float("inf"), loss, smoothed)
    return tl.where(target == ignore_index, 0.0, loss)
