"""Cross-entropy of logits by this room's Triton kernels, in place of torch's.

`cross_entropy` stands for torch.nn.functional.cross_entropy, `cross_entropy_and_lse` gives the
log-sum-exp beside the loss, and `cross_entropy_over_logits` spends no memory on a gradient: its
backward pass writes that over the logits.
"""

from typing import Any

import torch
from torch import Tensor

from peakward.kernels.ops.calling import Operator, operator
from peakward.kernels.ops.launchable import (
    autocast_dtype,
    require_floats,
    require_launchable,
    require_loss_dtype,
)

OP = "cross_entropy"


def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """`reference.cross_entropy`'s mean, computed in fp32 and given in torch's type: that of the
    logits, fp32 under autocast.

    Two things differ from torch. A target outside the vocabulary makes the loss and its row's
    gradient NaN, where torch stops the process; and rows that are ignored have a gradient of zeros
    even where their logits are NaN.

    Args:
        logits: (tokens, vocab) of fp32, fp16 or bf16 on CUDA, the logits of a row next to one another.
        targets: (tokens,) of int64.
        reduction: "mean" is the only one there is.

    Raises:
        ValueError: inputs of another shape, type, stride or device.
    """
    return cross_entropy_and_lse(
        logits,
        targets,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
    )[0]


def cross_entropy_and_lse(
    logits: Tensor,
    targets: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> tuple[Tensor, Tensor]:
    """`cross_entropy`, and log Σ exp of every row, ignored ones too: (tokens,) of fp32, through which
    gradients flow as well."""
    _require_mean(reduction)
    loss, lse, _, _ = _forward(logits, targets, ignore_index, label_smoothing, _loss_dtype(logits))
    return loss, lse


def cross_entropy_over_logits(
    logits: Tensor,
    targets: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    loss_dtype: torch.dtype | None = None,
) -> Tensor:
    """`cross_entropy` whose backward pass writes the gradient over the logits.

    The loss is in `loss_dtype` where that is given: torch's type rounds a loss of bf16 logits to bf16.

    The logits must not be read after the backward pass. Code that torch 2.13 compiles first copies the
    logits onto themselves: this takes a pass, but no more memory. Where autograd itself still needs the
    logits, as in a second backward pass, it raises its RuntimeError on tensors modified in place. A
    backward pass with create_graph=True raises a RuntimeError too.
    """
    _require_mean(reduction)
    dtype = loss_dtype or _loss_dtype(logits)
    require_loss_dtype(OP, dtype)
    return _forward_over(logits, targets, ignore_index, label_smoothing, dtype)[0]


def _require_mean(reduction: str) -> None:
    if reduction != "mean":
        raise ValueError(f"{OP}: expected a reduction of 'mean', got {reduction!r}")


def _require(
    logits: Tensor, targets: Tensor, _ignore_index: int, label_smoothing: float, *_: Any
) -> None:
    require_floats(OP, logits=logits)
    if logits.dim() != 2 or logits.shape[1] == 0:
        raise ValueError(f"{OP}: expected logits of (tokens, vocab), got {tuple(logits.shape)}")
    n_tokens, vocab = logits.shape
    if targets.dtype != torch.int64 or targets.shape != (n_tokens,) or not targets.is_contiguous():
        raise ValueError(
            f"{OP}: expected contiguous targets of ({n_tokens},) in torch.int64, got "
            f"{tuple(targets.shape)} in {targets.dtype} with strides {targets.stride()}"
        )
    if targets.device != logits.device:
        raise ValueError(
            f"{OP}: expected logits and targets on one device, got {logits.device} and {targets.device}"
        )
    if (vocab > 1 and logits.stride(1) != 1) or (n_tokens > 1 and logits.stride(0) < vocab):
        raise ValueError(
            f"{OP}: expected the logits of a row next to one another and rows apart, got strides "
            f"{logits.stride()}; logits.contiguous() has them"
        )
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"{OP}: expected label_smoothing within 0 and 1, got {label_smoothing}")


def _loss_dtype(logits: Tensor) -> torch.dtype:
    return logits.dtype if autocast_dtype(logits.device) is None else torch.float32


def _compute(
    logits: Tensor,
    targets: Tensor,
    ignore_index: int,
    label_smoothing: float,
    loss_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    require_launchable(OP, logits, targets)
    from peakward.kernels.ops.cross_entropy import triton

    with torch.cuda.device_of(logits):
        return triton.forward(
            logits,
            targets,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            loss_dtype=loss_dtype,
        )


def _fake(
    logits: Tensor,
    targets: Tensor,  # noqa: ARG001 (as the op has them)
    ignore_index: int,  # noqa: ARG001
    label_smoothing: float,  # noqa: ARG001
    loss_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        logits.new_empty((), dtype=loss_dtype),
        logits.new_empty((logits.shape[0],), dtype=torch.float32),
        logits.new_empty((logits.shape[0], 2), dtype=torch.float32),
        logits.new_empty((), dtype=torch.float32),
    )


_forward = Operator(f"peakward::{OP}", _compute, check=_require)
_forward_over = Operator(f"peakward::{OP}_over_logits", _compute, check=_require)
_forward.register_fake(_fake)
_forward_over.register_fake(_fake)


@operator(f"peakward::{OP}_backward")
def _backward(  # noqa: PLR0917 (an op takes tensors by position)
    logits: Tensor,
    targets: Tensor,
    sums: Tensor,
    count: Tensor,
    grad_loss: Tensor,
    grad_lse: Tensor | None,
    *,
    ignore_index: int,
    label_smoothing: float,
) -> Tensor:
    logits = _together(logits)
    out = torch.empty_strided(
        logits.shape, logits.stride(), dtype=logits.dtype, device=logits.device
    )
    _write_gradient(
        logits,
        targets,
        sums,
        count,
        grad_loss,
        out,
        grad_lse=grad_lse,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
    )
    return out


@_backward.register_fake
def _(logits: Tensor, *_: Any, **__: Any) -> Tensor:
    logits = _together(logits)
    return torch.empty_strided(
        logits.shape, logits.stride(), dtype=logits.dtype, device=logits.device
    )


@operator(f"peakward::{OP}_backward_over_logits", mutates=("logits",))
def _backward_over(  # noqa: PLR0917
    logits: Tensor,
    targets: Tensor,
    sums: Tensor,
    count: Tensor,
    grad_loss: Tensor,
    grad_lse: Tensor | None,
    *,
    ignore_index: int,
    label_smoothing: float,
) -> None:
    _write_gradient(
        logits,
        targets,
        sums,
        count,
        grad_loss,
        logits,
        grad_lse=grad_lse,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
    )


@_backward_over.register_fake
def _(*_: Any, **__: Any) -> None:
    return None


def _together(logits: Tensor) -> Tensor:
    """The logits, copied where most of what their rows span is not theirs: their gradient is laid out as they
    are, and one token's of each sequence (`logits[:, -1]`) would take the room of all."""
    return logits if logits.stride(0) <= 2 * logits.shape[1] else logits.contiguous()


def _write_gradient(
    *tensors: Tensor, grad_lse: Tensor | None, ignore_index: int, label_smoothing: float
) -> None:
    from peakward.kernels.ops.cross_entropy import triton

    with torch.cuda.device_of(tensors[0]):
        triton.gradient(
            *tensors,
            grad_lse=None if grad_lse is None else grad_lse.contiguous(),
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
        )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    logits, targets, ctx.ignore_index, ctx.label_smoothing, _ = inputs
    _, _, sums, count = output
    ctx.save_for_backward(logits, targets, sums, count)
    ctx.mark_non_differentiable(sums, count)
    ctx.set_materialize_grads(False)


def _arguments(
    ctx: Any, grad_loss: Tensor | None, grad_lse: Tensor | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    logits, targets, sums, count = ctx.saved_tensors
    if grad_loss is None:
        grad_loss = torch.zeros_like(count)
    options = {"ignore_index": ctx.ignore_index, "label_smoothing": ctx.label_smoothing}
    return (logits, targets, sums, count, grad_loss, grad_lse), options


def _differentiate(
    ctx: Any, grad_loss: Tensor | None, grad_lse: Tensor | None, *_: Tensor | None
) -> tuple[Tensor | None, ...]:
    tensors, options = _arguments(ctx, grad_loss, grad_lse)
    return _backward(*tensors, **options), None, None, None, None


def _differentiate_over(
    ctx: Any, grad_loss: Tensor | None, grad_lse: Tensor | None, *_: Tensor | None
) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled():
        # What it returns are the logits, through which autograd would go on as such.
        raise RuntimeError(
            f"{OP}: expected create_graph=False of a gradient written over the logits, got True"
        )
    tensors, options = _arguments(ctx, grad_loss, grad_lse)
    _backward_over(*tensors, **options)
    return tensors[0], None, None, None, None


_forward.register_autograd(_differentiate, setup_context=_keep)
_forward_over.register_autograd(_differentiate_over, setup_context=_keep)
