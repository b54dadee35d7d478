"""Cross-entropy of a projection onto the vocabulary, without the memory for all of its logits, by the
name of its implementation."""

from typing import Any

import torch
from torch import Tensor

from peakward.lab.ops.launchable import require_floats, require_launchable
from peakward.lab.ops.linear_cross_entropy.workspace import workspace_bytes as default_bytes

OP = "linear_cross_entropy"
IMPLEMENTATIONS = ("chunked", "recomputed")
ROW_BYTES = 16


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    implementation: str,
    ignore_index: int = -100,
    workspace_bytes: int | None = None,
    loss_dtype: torch.dtype | None = None,
) -> Tensor:
    """torch.nn.functional.cross_entropy(hidden @ weight.T, targets), the mean, in torch's type: that
    of hidden, fp32 under autocast (which casts hidden and weight as it does for a product).

    `chunked` makes gradients along with the loss, of a chunk of tokens at a time; `recomputed` writes
    no logits in the forward pass and computes them a second time in the backward pass. A target
    outside the vocabulary makes the loss NaN.

    Args:
        hidden: (tokens, d), contiguous, of fp32, fp16 or bf16, on CUDA.
        weight: (vocab, d), likewise.
        targets: (tokens,) of int64.
        implementation: one of `IMPLEMENTATIONS`. `recomputed` takes widths of whole 16 bytes.
        workspace_bytes: at most so many hold a chunk's logits or their gradient, though 128 rows or
            columns are always taken; as many as the weight's, and at least 256 MiB, if not given.
        loss_dtype: of the result, in place of torch's.

    Raises:
        ValueError: no such implementation, or inputs of another shape, type, stride or device.
    """
    if torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
        loss_dtype = loss_dtype or torch.float32
    loss_dtype = loss_dtype or hidden.dtype
    _require(hidden, weight, targets, implementation)
    n_bytes = default_bytes(weight) if workspace_bytes is None else workspace_bytes
    if implementation == "recomputed":
        return _recomputed(hidden, weight, targets, ignore_index, loss_dtype, n_bytes)[0]
    differentiates = torch.is_grad_enabled()
    wanted = (differentiates and each.requires_grad for each in (hidden, weight))
    return _chunked(hidden, weight, targets, ignore_index, loss_dtype, n_bytes, *wanted)[0]


def _require(hidden: Tensor, weight: Tensor, targets: Tensor, implementation: str) -> None:
    if implementation not in IMPLEMENTATIONS:
        names = " or ".join(map(repr, IMPLEMENTATIONS))
        raise ValueError(f"{OP}: expected an implementation of {names}, got {implementation!r}")
    require_floats(OP, hidden=hidden, weight=weight)
    if hidden.dim() != 2 or weight.dim() != 2 or hidden.shape[1] != weight.shape[1]:
        raise ValueError(
            f"{OP}: expected hidden of (tokens, d) and weight of (vocab, d), got "
            f"{tuple(hidden.shape)} and {tuple(weight.shape)}"
        )
    if hidden.dtype != weight.dtype:
        raise ValueError(
            f"{OP}: expected hidden and weight of one type, got {hidden.dtype} and {weight.dtype}"
        )
    if not weight.numel():
        raise ValueError(f"{OP}: expected a weight that is not empty, got {tuple(weight.shape)}")
    if targets.dtype != torch.int64 or targets.shape != hidden.shape[:1]:
        raise ValueError(
            f"{OP}: expected targets of ({hidden.shape[0]},) in torch.int64, got "
            f"{tuple(targets.shape)} in {targets.dtype}"
        )
    devices = {each.device for each in (hidden, weight, targets)}
    if len(devices) > 1:
        got = ", ".join(sorted(map(str, devices)))
        raise ValueError(f"{OP}: expected tensors on one device, got {got}")
    for name, each in (("hidden", hidden), ("weight", weight), ("targets", targets)):
        if not each.is_contiguous():
            raise ValueError(f"{OP}: expected a contiguous {name}, got strides {each.stride()}")
    if implementation == "recomputed" and hidden.shape[1] * hidden.element_size() % ROW_BYTES:
        raise ValueError(
            f"{OP}: expected a width of whole {ROW_BYTES} bytes, got {hidden.shape[1]} of "
            f"{hidden.dtype}; the implementation 'chunked' takes any"
        )


@torch.library.custom_op(f"peakward::{OP}_chunked", mutates_args=())
def _chunked(  # noqa: PLR0917 (autograd takes no keywords)
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    ignore_index: int,
    loss_dtype: torch.dtype,
    n_bytes: int,
    of_hidden: bool,
    of_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from peakward.lab.ops.linear_cross_entropy import chunked

    require_launchable(OP, hidden, weight, targets)
    return chunked.loss_and_gradients(
        hidden,
        weight,
        targets,
        ignore_index=ignore_index,
        loss_dtype=loss_dtype,
        n_bytes=n_bytes,
        of_hidden=of_hidden,
        of_weight=of_weight,
    )


@_chunked.register_fake
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


@torch.library.custom_op(f"peakward::{OP}_chunked_backward", mutates_args=())
def _chunked_backward(
    d_hidden: Tensor, d_weight: Tensor, count: Tensor, grad_loss: Tensor
) -> tuple[Tensor, Tensor]:
    from peakward.lab.ops.linear_cross_entropy import chunked

    return chunked.gradients(d_hidden, d_weight, count, grad_loss)


@_chunked_backward.register_fake
def _(d_hidden: Tensor, d_weight: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(d_hidden), torch.empty_like(d_weight, dtype=d_hidden.dtype)


@torch.library.custom_op(f"peakward::{OP}_recomputed", mutates_args=())
def _recomputed(  # noqa: PLR0917
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    ignore_index: int,
    loss_dtype: torch.dtype,
    n_bytes: int,  # noqa: ARG001 (for the backward pass)
) -> tuple[Tensor, Tensor, Tensor]:
    from peakward.lab.ops.linear_cross_entropy import recomputed

    require_launchable(OP, hidden, weight, targets)
    for name, each in (("hidden", hidden), ("weight", weight)):
        if each.data_ptr() % ROW_BYTES:
            raise ValueError(
                f"{OP}: expected {name} at a multiple of {ROW_BYTES} bytes in memory, got a view "
                f"that begins at element {each.storage_offset()}; {name}.clone() has it"
            )
    return recomputed.loss(
        hidden, weight, targets, ignore_index=ignore_index, loss_dtype=loss_dtype
    )


@_recomputed.register_fake
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


@torch.library.custom_op(f"peakward::{OP}_recomputed_backward", mutates_args=())
def _recomputed_backward(  # noqa: PLR0917
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
    from peakward.lab.ops.linear_cross_entropy import recomputed

    return recomputed.gradients(
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


@_recomputed_backward.register_fake
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
    d_hidden, d_weight = _chunked_backward(*ctx.saved_tensors, grad_loss)
    of_hidden, of_weight = ctx.wanted
    return d_hidden if of_hidden else None, d_weight if of_weight else None, *[None] * 6


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    hidden, weight, targets, ctx.ignore_index, _, ctx.n_bytes = inputs
    _, sums, count = output
    ctx.save_for_backward(hidden, weight, targets, sums, count)
    ctx.mark_non_differentiable(sums, count)
    ctx.set_materialize_grads(False)


def _compute_gradients(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    of_hidden, of_weight = ctx.needs_input_grad[:2]
    d_hidden, d_weight = _recomputed_backward(
        *ctx.saved_tensors, grad_loss, ctx.ignore_index, ctx.n_bytes, of_hidden, of_weight
    )
    return d_hidden if of_hidden else None, d_weight if of_weight else None, *[None] * 4


_chunked.register_autograd(_scale_gradients, setup_context=_keep_gradients)
_recomputed.register_autograd(_compute_gradients, setup_context=_keep_inputs)
