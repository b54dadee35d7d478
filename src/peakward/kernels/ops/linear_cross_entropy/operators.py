"""The implementations as operators of torch: with gradients, and with fake tensors."""

from typing import Any

import torch
from torch import Tensor

from peakward.kernels.ops.calling import operator
from peakward.kernels.ops.launchable import require_launchable
from peakward.kernels.ops.linear_cross_entropy.workspace import row_length

OP = "linear_cross_entropy"
ROW_BYTES = 16


@operator(f"peakward::{OP}_chunked")
def chunked(  # noqa: PLR0917 (autograd takes no keywords)
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    ignore_index: int,
    loss_dtype: torch.dtype,
    n_bytes: int,
    of_hidden: bool,
    of_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    require_launchable(OP, hidden, weight, targets)
    from peakward.kernels.ops.linear_cross_entropy.chunked import loss_and_gradients

    with torch.cuda.device_of(hidden):
        return loss_and_gradients(
            hidden,
            weight,
            targets,
            ignore_index=ignore_index,
            loss_dtype=loss_dtype,
            n_bytes=n_bytes,
            of_hidden=of_hidden,
            of_weight=of_weight,
        )


@chunked.register_fake
def _(  # noqa: PLR0917
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,  # noqa: ARG001 (as the op has them)
    ignore_index: int,  # noqa: ARG001
    loss_dtype: torch.dtype,
    n_bytes: int,  # noqa: ARG001
    of_hidden: bool,
    of_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        hidden.new_empty((), dtype=loss_dtype),
        hidden.new_empty((), dtype=torch.float32),
        hidden.new_empty(hidden.shape if of_hidden else (0, 0)),
        weight.new_empty(weight.shape if of_weight else (0, 0), dtype=torch.float32),
    )


@operator(f"peakward::{OP}_chunked_backward")
def chunked_backward(
    d_hidden: Tensor, d_weight: Tensor, count: Tensor, grad_loss: Tensor
) -> tuple[Tensor, Tensor]:
    from peakward.kernels.ops.linear_cross_entropy.chunked import gradients

    with torch.cuda.device_of(d_hidden):
        return gradients(d_hidden, d_weight, count, grad_loss)


@chunked_backward.register_fake
def _(d_hidden: Tensor, d_weight: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(d_hidden), torch.empty_like(d_weight, dtype=d_hidden.dtype)


@operator(f"peakward::{OP}_whole")
def whole(  # noqa: PLR0917
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    ignore_index: int,
    loss_dtype: torch.dtype,
    of_hidden: bool,
    of_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    require_launchable(OP, hidden, weight, targets)
    from peakward.kernels.ops.linear_cross_entropy.whole import loss_and_slope

    with torch.cuda.device_of(hidden):
        return loss_and_slope(
            hidden,
            weight,
            targets,
            ignore_index=ignore_index,
            loss_dtype=loss_dtype,
            of_hidden=of_hidden,
            of_weight=of_weight,
        )


@whole.register_fake
def _(  # noqa: PLR0917
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,  # noqa: ARG001
    ignore_index: int,  # noqa: ARG001
    loss_dtype: torch.dtype,
    of_hidden: bool,
    of_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    slope_shape = hidden.shape[0], row_length(weight.shape[0])
    return (
        hidden.new_empty((), dtype=loss_dtype),
        hidden.new_empty((), dtype=torch.float32),
        hidden.new_empty(hidden.shape if of_hidden else (0, 0)),
        hidden.new_empty(slope_shape if of_weight else (0, 0)),
    )


@operator(f"peakward::{OP}_whole_backward")
def whole_backward(  # noqa: PLR0917
    hidden: Tensor,
    d_hidden: Tensor,
    slope: Tensor,
    count: Tensor,
    grad_loss: Tensor,
    vocab: int,
    of_weight: bool,
) -> tuple[Tensor, Tensor]:
    from peakward.kernels.ops.linear_cross_entropy.whole import gradients

    with torch.cuda.device_of(hidden):
        return gradients(
            hidden, d_hidden, slope, count, grad_loss, vocab=vocab, of_weight=of_weight
        )


@whole_backward.register_fake
def _(  # noqa: PLR0917
    hidden: Tensor,
    d_hidden: Tensor,
    slope: Tensor,  # noqa: ARG001
    count: Tensor,  # noqa: ARG001
    grad_loss: Tensor,  # noqa: ARG001
    vocab: int,
    of_weight: bool,
) -> tuple[Tensor, Tensor]:
    shape = (vocab, hidden.shape[1]) if of_weight else (0, 0)
    return torch.empty_like(d_hidden), hidden.new_empty(shape)


@operator(f"peakward::{OP}_recomputed")
def recomputed(  # noqa: PLR0917
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    ignore_index: int,
    loss_dtype: torch.dtype,
    n_bytes: int,  # noqa: ARG001 (for the backward pass)
) -> tuple[Tensor, Tensor, Tensor]:
    require_launchable(OP, hidden, weight, targets)
    from peakward.kernels.ops.linear_cross_entropy.recomputed import loss

    for name, each in (("hidden", hidden), ("weight", weight)):
        if each.data_ptr() % ROW_BYTES:
            raise ValueError(
                f"{OP}: expected {name} at a multiple of {ROW_BYTES} bytes in memory, got a view "
                f"that begins at element {each.storage_offset()}; {name}.clone() has it"
            )
    with torch.cuda.device_of(hidden):
        return loss(hidden, weight, targets, ignore_index=ignore_index, loss_dtype=loss_dtype)


@recomputed.register_fake
def _(  # noqa: PLR0917
    hidden: Tensor,
    weight: Tensor,  # noqa: ARG001
    targets: Tensor,  # noqa: ARG001
    ignore_index: int,  # noqa: ARG001
    loss_dtype: torch.dtype,
    n_bytes: int,  # noqa: ARG001
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        hidden.new_empty((), dtype=loss_dtype),
        hidden.new_empty((hidden.shape[0], 2), dtype=torch.float32),
        hidden.new_empty((), dtype=torch.float32),
    )


@operator(f"peakward::{OP}_recomputed_backward")
def recomputed_backward(  # noqa: PLR0917
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    sums: Tensor,
    count: Tensor,
    grad_loss: Tensor,
    ignore_index: int,
    n_bytes: int,
    of_hidden: bool,
    of_weight: bool,
) -> tuple[Tensor, Tensor]:
    from peakward.kernels.ops.linear_cross_entropy.recomputed import gradients

    with torch.cuda.device_of(hidden):
        return gradients(
            hidden,
            weight,
            targets,
            sums,
            count,
            grad_loss,
            ignore_index=ignore_index,
            n_bytes=n_bytes,
            of_hidden=of_hidden,
            of_weight=of_weight,
        )


@recomputed_backward.register_fake
def _(hidden: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    of_hidden, of_weight = rest[-2:]
    return (
        hidden.new_empty(hidden.shape if of_hidden else (0, 0)),
        weight.new_empty(weight.shape if of_weight else (0, 0)),
    )


def _keep_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.wanted = inputs[-2:]
    _, count, d_hidden, d_weight = output
    ctx.save_for_backward(d_hidden, d_weight, count)
    ctx.mark_non_differentiable(count, d_hidden, d_weight)
    ctx.set_materialize_grads(False)  # Or zeros as large as both gradients would be made for them.


def _scale_gradients(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    d_hidden, d_weight = chunked_backward(*ctx.saved_tensors, grad_loss)
    of_hidden, of_weight = ctx.wanted
    return d_hidden if of_hidden else None, d_weight if of_weight else None, *[None] * 6


def _keep_slope(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    hidden, weight, *_, of_hidden, of_weight = inputs
    _, count, d_hidden, slope = output
    ctx.wanted, ctx.vocab = (of_hidden, of_weight), weight.shape[0]
    ctx.save_for_backward(hidden, d_hidden, slope, count)
    ctx.mark_non_differentiable(count, d_hidden, slope)
    ctx.set_materialize_grads(False)


def _multiply_slope(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    of_hidden, of_weight = ctx.wanted
    d_hidden, d_weight = whole_backward(*ctx.saved_tensors, grad_loss, ctx.vocab, of_weight)
    return d_hidden if of_hidden else None, d_weight if of_weight else None, *[None] * 5


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    hidden, weight, targets, ctx.ignore_index, _, ctx.n_bytes = inputs
    _, sums, count = output
    ctx.save_for_backward(hidden, weight, targets, sums, count)
    ctx.mark_non_differentiable(sums, count)
    ctx.set_materialize_grads(False)


def _compute_gradients(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    of_hidden, of_weight = ctx.needs_input_grad[:2]
    d_hidden, d_weight = recomputed_backward(
        *ctx.saved_tensors, grad_loss, ctx.ignore_index, ctx.n_bytes, of_hidden, of_weight
    )
    return d_hidden if of_hidden else None, d_weight if of_weight else None, *[None] * 4


chunked.register_autograd(_scale_gradients, setup_context=_keep_gradients)
whole.register_autograd(_multiply_slope, setup_context=_keep_slope)
recomputed.register_autograd(_compute_gradients, setup_context=_keep_inputs)
