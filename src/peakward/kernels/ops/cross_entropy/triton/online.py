"""Cross-entropy in one online pass over the logits."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from peakward.kernels.ops.cross_entropy.triton.rows import loss_of_row, sums_of_row
from peakward.kernels.ops.cross_entropy.triton.settings import (
    Settings,
    cut,
    others_for,
    settings_for,
)
from peakward.kernels.ops.dependent import dependent, wait_for_the_one_before
from peakward.kernels.ops.recording import launch
from peakward.kernels.ops.tuning import tuned


@triton.jit
def cross_entropy_forward(  # type: ignore[no-untyped-def]
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
    best, total, plain = sums_of_row(logits_ptr, at, vocab, SMOOTHS, LANES, VECTOR)
    loss = loss_of_row(
        logits_ptr, target, at, vocab, best, total, plain, smoothing, ignore_index, SMOOTHS
    )
    tl.store(losses_ptr + row, loss)
    tl.store(lse_ptr + row, best + tl.log(total))
    tl.store(sums_ptr + 2 * row, best)
    tl.store(sums_ptr + 2 * row + 1, total)


@triton.jit
def cross_entropy_mean(  # type: ignore[no-untyped-def]
    losses_ptr,
    targets_ptr,
    loss_ptr,
    count_ptr,
    n_tokens,
    ignore_index,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """One program: what a row costs is 12 bytes, and the order of the sum is always the same."""
    wait_for_the_one_before(DEPENDENT)
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
    chosen = settings or _settings_of(logits, targets, ignore_index, label_smoothing)
    launch(
        cross_entropy_forward,
        (n_tokens,),
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
        **cut(chosen, logits),
    )


def _settings_of(
    logits: Tensor, targets: Tensor, ignore_index: int, label_smoothing: float
) -> Settings:
    """By rule, or where asked for the fastest."""
    n_tokens, vocab = logits.shape

    def start(settings: Settings) -> tuple[Tensor, ...]:
        each, lse = (_fp32(logits, n_tokens) for _ in range(2))
        losses(
            logits,
            targets,
            each,
            lse,
            _fp32(logits, n_tokens, 2),
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            settings=settings,
        )
        return each, lse

    return tuned(
        "cross_entropy",
        lambda: (
            f"{logits.dtype}, {vocab} words, up to {triton.next_power_of_2(n_tokens)} tokens, "
            f"rows {logits.stride(0) % 8} beyond vectors, {'' if label_smoothing else 'not '}smoothed"
        ),
        logits.device,
        rule=settings_for(n_tokens, vocab, logits.element_size()),
        others=lambda: others_for(logits.element_size()),
        start=start,
    )


def mean(
    losses: Tensor, targets: Tensor, loss: Tensor, count: Tensor, *, ignore_index: int
) -> None:
    """Writes the number of rows that count, and the sum of `losses` over it."""
    n_tokens = targets.shape[0]
    block = min(4096, max(128, triton.next_power_of_2(n_tokens)))
    launch(
        cross_entropy_mean,
        (1,),
        losses,
        targets,
        loss,
        count,
        n_tokens,
        ignore_index,
        BLOCK=block,
        num_warps=block // 128,
        **dependent(),
    )


def _fp32(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)
