"""Cross-entropy in one online pass over the logits, and its gradient in one more.

A program streams a row. Every thread keeps the maximum and the sum of exponentials of its own
16-byte vectors (Milakov & Gimelshein 2018, algorithm 3, a vector of VECTOR logits a step instead of
one: 1 + 1/VECTOR exponentials a logit), so that threads meet once, at the row's end. What a row of
odd length begins or ends with inside a vector, its edges, is taken in by itself (`rows.vectors`).
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from peakward.lab.ops.rows.vectors import edges, whole_vectors

VECTOR_BYTES = 16
N_MULTIPROCESSORS = 132
"""Of an H100 and an H200."""
LOWEST: tl.constexpr = tl.constexpr(-3.4028234663852886e38)
"""fp32's; as the first maximum, where -inf would make -inf - (-inf) of a logit of -inf."""


class Settings(NamedTuple):
    """How a row is cut."""

    block: int
    """Logits that a program has in flight."""
    num_warps: int


def settings_for(n_tokens: int, vocab: int, itemsize: int) -> Settings:
    """Enough warps a row that all rows together fill the multiprocessors. Four vectors a thread; with 4
    warps for 8 an H100 took 107 µs for 101 of 8,192 × 10,000, 192 for 189 of 8,192 × 32,000."""
    return _settings(8 if n_tokens >= 1024 or vocab <= 8192 else 16, 4, itemsize)


def gradient_settings_for(itemsize: int) -> Settings:
    """Two vectors a thread: on an H100 within 1% of the fastest from 10,000 to 128,256 logits, where four
    are up to 5% slower."""
    return _settings(4, 2, itemsize)


def settings_of_both(vocab: int, itemsize: int) -> Settings:
    """For rows that are read twice: few in work, each with many warps, so that they are in the L2
    still: all that a GPU works at, 48 warps a multiprocessor, in 28 MiB of an H100's 50 (16 warps a
    row: 431 µs for 8's 521 of 8,192 × 32,000; 8: 144 for 16's 213 of 8,192 × 10,000)."""
    rows_bytes = N_MULTIPROCESSORS * vocab * itemsize
    fitting = (each for each in (8, 16) if 48 // each * rows_bytes <= 28 << 20)
    num_warps = next(fitting, 32)
    return _settings(num_warps, 4 if num_warps == 32 else 2, itemsize)


def _settings(num_warps: int, vectors: int, itemsize: int) -> Settings:
    return Settings(num_warps * 32 * vectors * VECTOR_BYTES // itemsize, num_warps)


@triton.jit
def _take_in(x, top, total):  # type: ignore[no-untyped-def]
    """x of [LANES, VECTOR] into the running maximum and the sum of exp(x - maximum), a lane."""
    best = tl.maximum(top, tl.max(x, axis=1))
    return best, total * tl.exp(top - best) + tl.sum(tl.exp(x - best[:, None]), axis=1)


@triton.jit
def _row(logits_ptr, at, vocab, SMOOTHS: tl.constexpr, LANES: tl.constexpr, VECTOR: tl.constexpr):  # type: ignore[no-untyped-def]
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
def _loss(  # type: ignore[no-untyped-def]
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


@triton.jit
def _cross_entropy_forward(  # type: ignore[no-untyped-def]
    logits_ptr,
    targets_ptr,
    losses_ptr,
    lse_ptr,
    sums_ptr,
    stride,
    vocab,
    ignore_index,
    smoothing,
    SMOOTHS: tl.constexpr,
    LANES: tl.constexpr,
    VECTOR: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets_ptr + row)
    at = row * stride
    best, total, plain = _row(logits_ptr, at, vocab, SMOOTHS, LANES, VECTOR)
    loss = _loss(
        logits_ptr, target, at, vocab, best, total, plain, smoothing, ignore_index, SMOOTHS
    )
    tl.store(losses_ptr + row, loss)
    tl.store(lse_ptr + row, best + tl.log(total))
    tl.store(sums_ptr + 2 * row, best)
    tl.store(sums_ptr + 2 * row + 1, total)


@triton.jit
def _cross_entropy_mean(  # type: ignore[no-untyped-def]
    losses_ptr, targets_ptr, loss_ptr, count_ptr, n_tokens, ignore_index, BLOCK: tl.constexpr
):
    """One program: what a row costs is 12 bytes, and the order of the sum is always the same."""
    total = tl.zeros([BLOCK], tl.float32)
    count = tl.zeros([BLOCK], tl.int32)
    for start in range(0, n_tokens, BLOCK):
        row = start + tl.arange(0, BLOCK)
        inside = row < n_tokens
        target = tl.load(targets_ptr + row, mask=inside, other=ignore_index)
        total += tl.load(losses_ptr + row, mask=inside, other=0.0)
        count += (target != ignore_index).to(tl.int32)
    n_counted = tl.sum(count, axis=0).to(tl.float32)
    # Where no row counts 0/0 is NaN, as torch has it.
    mean = tl.div_rn(tl.sum(total, axis=0), n_counted)
    tl.store(count_ptr, n_counted)
    tl.store(loss_ptr, mean.to(loss_ptr.dtype.element_ty))


@triton.jit
def _weight(target, vocab, scale, ignore_index):  # type: ignore[no-untyped-def]
    """What the gradient of a row's loss is multiplied by: NaN where the loss is."""
    known = (target >= 0) & (target < vocab)
    return tl.where(target == ignore_index, 0.0, tl.where(known, scale, float("nan")))


@triton.jit
def _slope(x, column, target, best, weight, g, smoothing, vocab, counts):  # type: ignore[no-untyped-def]
    """exp(x - best)·weight - q·g of logits in some columns; zeros in a row that does not count."""
    q = smoothing / vocab + tl.where(column == target.to(tl.int32), 1 - smoothing, 0.0)
    return tl.where(counts, tl.exp(x.to(tl.float32) - best) * weight - q * g, 0.0)


@triton.jit
def _write_inside(  # type: ignore[no-untyped-def]
    from_ptr,
    to_ptr,
    at,
    start,
    target,
    best,
    weight,
    g,
    smoothing,
    vocab,
    counts,
    LANES: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """The gradient of a block of whole vectors of the row from `at` on."""
    first, n_inside = whole_vectors(at, vocab, VECTOR)
    lane = start + tl.arange(0, LANES)[:, None] * VECTOR
    offset = lane + tl.arange(0, VECTOR)[None, :]
    inside = lane < n_inside
    x = tl.load(from_ptr + first + offset, mask=inside, other=0.0)
    column = (first - at).to(tl.int32) + offset
    slope = _slope(x, column, target, best, weight, g, smoothing, vocab, counts)
    tl.store(to_ptr + first + offset, slope.to(to_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _write_edges(  # type: ignore[no-untyped-def]
    from_ptr,
    to_ptr,
    at,
    target,
    best,
    weight,
    g,
    smoothing,
    vocab,
    counts,
    VECTOR: tl.constexpr,
):
    column, on_edge = edges(at, vocab, VECTOR)
    x = tl.load(from_ptr + at + column, mask=on_edge, other=0.0)
    slope = _slope(x, column, target, best, weight, g, smoothing, vocab, counts)
    tl.store(to_ptr + at + column, slope.to(to_ptr.dtype.element_ty), mask=on_edge)


@triton.jit
def _cross_entropy_backward(  # type: ignore[no-untyped-def]
    logits_ptr,
    targets_ptr,
    sums_ptr,
    count_ptr,
    grad_loss_ptr,
    grad_lse_ptr,
    gradient_ptr,
    stride,
    vocab,
    n_parts,
    ignore_index,
    smoothing,
    HAS_GRAD_LSE: tl.constexpr,
    LANES: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """A block of a row: logits and gradient of one stride, or the same."""
    BLOCK: tl.constexpr = LANES * VECTOR
    row = (tl.program_id(0) // n_parts).to(tl.int64)
    target = tl.load(targets_ptr + row)
    best = tl.load(sums_ptr + 2 * row)
    total = tl.load(sums_ptr + 2 * row + 1)
    scale = tl.div_rn(tl.load(grad_loss_ptr).to(tl.float32), tl.load(count_ptr))
    g = _weight(target, vocab, scale, ignore_index)
    h = 0.0
    counts = target != ignore_index
    if HAS_GRAD_LSE:
        h = tl.load(grad_lse_ptr + row).to(tl.float32)
        counts = counts | (h != 0)
    weight = tl.div_rn(g + h, total)
    shared = (target, best, weight, g, smoothing, vocab, counts)
    at = row * stride
    part = tl.program_id(0) % n_parts
    _write_inside(logits_ptr, gradient_ptr, at, part * BLOCK, *shared, LANES, VECTOR)
    if part == 0:
        _write_edges(logits_ptr, gradient_ptr, at, *shared, VECTOR)


@triton.jit
def _cross_entropy_both(  # type: ignore[no-untyped-def]
    logits_ptr,
    targets_ptr,
    losses_ptr,
    lse_ptr,
    stride,
    vocab,
    ignore_index,
    smoothing,
    SMOOTHS: tl.constexpr,
    LANES: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """Loss of a row, then its gradient over its logits, read again from the L2."""
    BLOCK: tl.constexpr = LANES * VECTOR
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets_ptr + row)
    at = row * stride
    best, total, plain = _row(logits_ptr, at, vocab, SMOOTHS, LANES, VECTOR)
    loss = _loss(
        logits_ptr, target, at, vocab, best, total, plain, smoothing, ignore_index, SMOOTHS
    )
    tl.store(losses_ptr + row, loss)
    tl.store(lse_ptr + row, best + tl.log(total))
    counts = target != ignore_index
    g = _weight(target, vocab, 1.0, ignore_index)
    weight = tl.div_rn(g, total)
    shared = (target, best, weight, g, smoothing, vocab, counts)
    # Every thread must have read the target's logit before one writes over it.
    tl.debug_barrier()
    for start in range(0, vocab, BLOCK):
        _write_inside(logits_ptr, logits_ptr, at, start, *shared, LANES, VECTOR)
    _write_edges(logits_ptr, logits_ptr, at, *shared, VECTOR)


def forward(
    logits: Tensor,
    targets: Tensor,
    *,
    ignore_index: int,
    label_smoothing: float,
    loss_dtype: torch.dtype,
    settings: Settings | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`reference.cross_entropy` in fp32, and what `gradient` asks for.

    Args:
        logits: (tokens, vocab) in fp32, fp16 or bf16, rows contiguous; their stride is any.

    Returns:
        The mean in `loss_dtype`; and in fp32 lse, (tokens,); `losses`' sums, (tokens, 2); and the
        number of rows that count, a scalar.
    """
    n_tokens = logits.shape[0]
    each, lse = (_fp32(logits, n_tokens) for _ in range(2))
    sums = _fp32(logits, n_tokens, 2)
    losses(
        logits,
        targets,
        each,
        lse,
        sums,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        settings=settings,
    )
    loss = torch.empty((), dtype=loss_dtype, device=logits.device)
    count = _fp32(logits)
    mean(each, targets, loss, count, ignore_index=ignore_index)
    return loss, lse, sums, count


def losses(
    logits: Tensor,
    targets: Tensor,
    each: Tensor,
    lse: Tensor,
    sums: Tensor,
    *,
    ignore_index: int,
    label_smoothing: float,
    settings: Settings | None = None,
) -> None:
    """Writes every row's loss and log-sum-exp, (tokens,), and its maximum m and Σ exp(logits - m),
    (tokens, 2), from which a softmax keeps the digits that the log-sum-exp rounds away; all fp32."""
    n_tokens, vocab = logits.shape
    if not n_tokens:
        return
    chosen = settings or settings_for(n_tokens, vocab, logits.element_size())
    _cross_entropy_forward[(n_tokens,)](
        logits,
        targets,
        each,
        lse,
        sums,
        logits.stride(0),
        vocab,
        ignore_index,
        label_smoothing,
        SMOOTHS=label_smoothing > 0,
        **_cut(chosen, logits),
    )


def mean(
    losses: Tensor, targets: Tensor, loss: Tensor, count: Tensor, *, ignore_index: int
) -> None:
    """Writes the number of rows that count, and the sum of `losses` over it."""
    n_tokens = targets.shape[0]
    block = min(4096, max(128, triton.next_power_of_2(n_tokens)))
    _cross_entropy_mean[(1,)](
        losses, targets, loss, count, n_tokens, ignore_index, BLOCK=block, num_warps=block // 128
    )


def gradient(
    logits: Tensor,
    targets: Tensor,
    sums: Tensor,
    count: Tensor,
    grad_loss: Tensor,
    out: Tensor,
    *,
    grad_lse: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    settings: Settings | None = None,
) -> None:
    """`reference.gradient` into `out`: of the logits' type and strides, or the logits themselves."""
    n_tokens, vocab = logits.shape
    chosen = settings or gradient_settings_for(logits.element_size())
    n_parts = triton.cdiv(vocab, chosen.block)
    if not n_tokens:
        return
    _cross_entropy_backward[(n_tokens * n_parts,)](
        logits,
        targets,
        sums,
        count,
        grad_loss,
        grad_lse if grad_lse is not None else sums,
        out,
        logits.stride(0),
        vocab,
        n_parts,
        ignore_index,
        label_smoothing,
        HAS_GRAD_LSE=grad_lse is not None,
        **_cut(chosen, logits),
    )


def losses_and_gradient(
    logits: Tensor,
    targets: Tensor,
    each: Tensor,
    lse: Tensor,
    *,
    ignore_index: int,
    label_smoothing: float,
    settings: Settings | None = None,
) -> None:
    """Writes every row's loss and log-sum-exp, (tokens,) of fp32, and the gradient of the losses'
    sum over the logits.

    From memory a row comes once if rows in work fit into the L2: few programs with many warps.
    """
    n_tokens, vocab = logits.shape
    if not n_tokens:
        return
    chosen = settings or settings_of_both(vocab, logits.element_size())
    _cross_entropy_both[(n_tokens,)](
        logits,
        targets,
        each,
        lse,
        logits.stride(0),
        vocab,
        ignore_index,
        label_smoothing,
        SMOOTHS=label_smoothing > 0,
        **_cut(chosen, logits),
    )


def _fp32(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def _cut(settings: Settings, logits: Tensor) -> dict[str, int]:
    """How a launch cuts the rows."""
    vector = VECTOR_BYTES // logits.element_size()
    return {
        "LANES": settings.block // vector,
        "VECTOR": vector,
        "num_warps": settings.num_warps,
    }
