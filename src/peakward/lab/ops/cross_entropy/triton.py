"""Cross-entropy in one online pass over the logits, and its gradient in one more.

A program streams a row. Every thread keeps the maximum and the sum of exponentials of its own
16-byte vectors (Milakov & Gimelshein 2018, algorithm 3, a vector of VECTOR logits a step instead of
one: 1 + 1/VECTOR exponentials a logit), so that threads meet once, at the row's end. What a row of
odd length begins or ends with inside a vector is loaded under a mask, all between without one.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

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


def settings_for(n_tokens: int, vocab: int, itemsize: int, *, aligned: bool) -> Settings:
    """Enough warps a row that all rows together fill the multiprocessors."""
    num_warps = 4 if n_tokens >= 1024 or vocab <= 8192 else 16
    return Settings(_block(num_warps, itemsize, aligned), num_warps)


def settings_of_both(vocab: int, itemsize: int, *, aligned: bool) -> Settings:
    """For rows that are read twice: few in work, each with many warps, so that they are in the L2
    still. A multiprocessor holds 32 warps of the kernel: two rows, or one of those of which two each
    would be more than 40 MiB of an H100's 50."""
    num_warps = 16 if 2 * N_MULTIPROCESSORS * vocab * itemsize <= 40 << 20 else 32
    block = min(_block(num_warps, itemsize, aligned), triton.next_power_of_2(vocab))
    return Settings(max(block, num_warps * 32 * VECTOR_BYTES // itemsize), num_warps)


def _block(num_warps: int, itemsize: int, aligned: bool) -> int:
    """Four 16-byte loads a thread, two where rows begin inside a vector: the addresses of single
    logits fill registers (124 of them with four, on sm_90)."""
    return num_warps * 32 * (4 if aligned else 2) * VECTOR_BYTES // itemsize


@triton.jit
def _take_in(x, top, total, plain, SMOOTHS: tl.constexpr):  # type: ignore[no-untyped-def]
    """x of [LANES, VECTOR] into the running maximum, the sum of exp(x - maximum) and of x, a lane."""
    best = tl.maximum(top, tl.max(x, axis=1))
    total = total * tl.exp(top - best) + tl.sum(tl.exp(x - best[:, None]), axis=1)
    if SMOOTHS:
        plain -= tl.sum(-x, axis=1)  # See `_take_in_masked`.
    return best, total, plain


@triton.jit
def _take_in_masked(at_ptr, offset, begin, end, top, total, plain, SMOOTHS: tl.constexpr):  # type: ignore[no-untyped-def]
    inside = (offset >= begin) & (offset < end)
    x = tl.load(at_ptr + offset, mask=inside, other=-float("inf")).to(tl.float32)
    top, total, _ = _take_in(x, top, total, plain, False)
    if SMOOTHS:
        # Triton 3.6 fails on a loop that adds a reduction to what a branch goes on with
        # (OptimizeThreadLocality, `loopResult.hasOneUse()`); it looks for additions alone. Kept by
        # element the sum took 72 registers in place of 40.
        plain -= tl.sum(tl.where(inside, -x, 0.0), axis=1)
    return top, total, plain


@triton.jit
def _row(  # type: ignore[no-untyped-def]
    logits_ptr,
    row,
    stride,
    vocab,
    ALIGNED: tl.constexpr,
    SMOOTHS: tl.constexpr,
    LANES: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """The maximum of a row, Σ exp(x - maximum) and Σ x."""
    BLOCK: tl.constexpr = LANES * VECTOR
    # Counted from the vector that the row begins in: every block is a whole number of them.
    first = row * stride // VECTOR
    at_ptr = logits_ptr + first * VECTOR
    begin = (row * stride - first * VECTOR).to(tl.int32)
    end = begin + vocab
    if ALIGNED:
        begin = 0
        end = vocab
    offset = tl.arange(0, LANES)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    top = tl.full([LANES], LOWEST, tl.float32)
    total = tl.zeros([LANES], tl.float32)
    plain = tl.zeros([LANES], tl.float32)
    unmasked_from = 0
    if not ALIGNED:
        top, total, plain = _take_in_masked(at_ptr, offset, begin, end, top, total, plain, SMOOTHS)
        unmasked_from = BLOCK
    unmasked_to = end // BLOCK * BLOCK
    for start in range(unmasked_from, unmasked_to, BLOCK):
        x = tl.load(at_ptr + start + offset).to(tl.float32)
        top, total, plain = _take_in(x, top, total, plain, SMOOTHS)
    if (unmasked_to < end) & (unmasked_to >= unmasked_from):
        top, total, plain = _take_in_masked(
            at_ptr, unmasked_to + offset, begin, end, top, total, plain, SMOOTHS
        )
    best = tl.max(top, axis=0)
    return best, tl.sum(total * tl.exp(top - best), axis=0), tl.sum(plain, axis=0)


@triton.jit
def _loss(  # type: ignore[no-untyped-def]
    logits_ptr,
    target,
    row,
    stride,
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
    x = tl.load(logits_ptr + row * stride + target, mask=known, other=float("nan")).to(tl.float32)
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
    ALIGNED: tl.constexpr,
    SMOOTHS: tl.constexpr,
    LANES: tl.constexpr,
    VECTOR: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets_ptr + row)
    best, total, plain = _row(logits_ptr, row, stride, vocab, ALIGNED, SMOOTHS, LANES, VECTOR)
    loss = _loss(
        logits_ptr, target, row, stride, vocab, best, total, plain, smoothing, ignore_index, SMOOTHS
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
def _write_block(  # type: ignore[no-untyped-def]
    from_ptr,
    to_ptr,
    offset,
    begin,
    end,
    hit,
    best,
    weight,
    g,
    smoothing,
    vocab,
    counts,
    MASKED: tl.constexpr,
):
    """exp(x - best)·weight - q·g of a block of a row; zeros in a row that does not count."""
    inside = (offset >= begin) & (offset < end)
    if MASKED:
        x = tl.load(from_ptr + offset, mask=inside, other=0.0).to(tl.float32)
    else:
        x = tl.load(from_ptr + offset).to(tl.float32)
    q = smoothing / vocab + tl.where(offset == hit, 1 - smoothing, 0.0)
    slope = tl.where(counts, tl.exp(x - best) * weight - q * g, 0.0).to(to_ptr.dtype.element_ty)
    if MASKED:
        tl.store(to_ptr + offset, slope, mask=inside)
    else:
        tl.store(to_ptr + offset, slope)


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
    ALIGNED: tl.constexpr,
    HAS_GRAD_LSE: tl.constexpr,
    LANES: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """A block of a row: logits and gradient of one stride, or the same."""
    BLOCK: tl.constexpr = LANES * VECTOR
    row = (tl.program_id(0) // n_parts).to(tl.int64)
    start = tl.program_id(0) % n_parts * BLOCK
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
    first = row * stride // VECTOR
    begin = (row * stride - first * VECTOR).to(tl.int32)
    if ALIGNED:
        begin = 0
    end = begin + vocab
    offset = start + tl.arange(0, LANES)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    from_ptr = logits_ptr + first * VECTOR
    to_ptr = gradient_ptr + first * VECTOR
    hit = tl.where(target == ignore_index, -1, begin + target)
    if (start >= begin) & (start + BLOCK <= end):
        _write_block(
            from_ptr,
            to_ptr,
            offset,
            begin,
            end,
            hit,
            best,
            weight,
            g,
            smoothing,
            vocab,
            counts,
            False,
        )
    else:
        _write_block(
            from_ptr,
            to_ptr,
            offset,
            begin,
            end,
            hit,
            best,
            weight,
            g,
            smoothing,
            vocab,
            counts,
            True,
        )


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
    ALIGNED: tl.constexpr,
    SMOOTHS: tl.constexpr,
    LANES: tl.constexpr,
    VECTOR: tl.constexpr,
):
    """Loss of a row, then its gradient over its logits, read again from the L2."""
    BLOCK: tl.constexpr = LANES * VECTOR
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets_ptr + row)
    best, total, plain = _row(logits_ptr, row, stride, vocab, ALIGNED, SMOOTHS, LANES, VECTOR)
    loss = _loss(
        logits_ptr, target, row, stride, vocab, best, total, plain, smoothing, ignore_index, SMOOTHS
    )
    tl.store(losses_ptr + row, loss)
    tl.store(lse_ptr + row, best + tl.log(total))
    counts = target != ignore_index
    g = _weight(target, vocab, 1.0, ignore_index)
    weight = tl.div_rn(g, total)
    first = row * stride // VECTOR
    begin = (row * stride - first * VECTOR).to(tl.int32)
    if ALIGNED:
        begin = 0
    end = begin + vocab
    at_ptr = logits_ptr + first * VECTOR
    hit = tl.where(counts, begin + target, -1)
    lanes = tl.arange(0, LANES)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    # Every thread must have read the target's logit before one writes over it.
    tl.debug_barrier()
    for start in range(0, end, BLOCK):
        offset = start + lanes
        if (start >= begin) & (start + BLOCK <= end):
            _write_block(
                at_ptr,
                at_ptr,
                offset,
                begin,
                end,
                hit,
                best,
                weight,
                g,
                smoothing,
                vocab,
                counts,
                False,
            )
        else:
            _write_block(
                at_ptr,
                at_ptr,
                offset,
                begin,
                end,
                hit,
                best,
                weight,
                g,
                smoothing,
                vocab,
                counts,
                True,
            )


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
        **_cut(logits, settings),
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
    cut = _cut(logits, settings)
    block = cut["LANES"] * cut["VECTOR"]
    # A row that begins inside a vector may end in one vector more than its length says.
    n_parts = triton.cdiv(vocab + (0 if cut["ALIGNED"] else cut["VECTOR"] - 1), block)
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
        **cut,
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
    aligned = _aligned(logits)
    chosen = settings or settings_of_both(vocab, logits.element_size(), aligned=aligned)
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
        **_cut(logits, chosen),
    )


def _fp32(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def _aligned(logits: Tensor) -> bool:
    """Whether every row begins at a vector, if the first one does."""
    return logits.stride(0) * logits.element_size() % VECTOR_BYTES == 0


def _cut(logits: Tensor, settings: Settings | None) -> dict[str, int | bool]:
    """How a launch cuts the rows."""
    (n_tokens, vocab), itemsize = logits.shape, logits.element_size()
    aligned = _aligned(logits)
    chosen = settings or settings_for(n_tokens, vocab, itemsize, aligned=aligned)
    vector = VECTOR_BYTES // itemsize
    return {
        "ALIGNED": aligned,
        "LANES": chosen.block // vector,
        "VECTOR": vector,
        "num_warps": chosen.num_warps,
    }
