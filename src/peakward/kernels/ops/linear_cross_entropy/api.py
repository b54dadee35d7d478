"""Cross-entropy of a projection onto the vocabulary, without the memory for all of its logits, by the
name of its implementation."""

import torch
from torch import Tensor

from peakward.kernels.ops.launchable import autocast_dtype, require_floats, require_loss_dtype
from peakward.kernels.ops.linear_cross_entropy import operators, workspace
from peakward.kernels.ops.linear_cross_entropy.operators import OP, ROW_BYTES

IMPLEMENTATIONS = ("chunked", "recomputed")


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
    """torch.nn.functional.cross_entropy(hidden @ weight.T, targets), the mean, in torch's type: that of
    hidden, fp32 under autocast (which casts hidden and weight as it does for a product).

    `chunked` makes gradients along with the loss, for a chunk of tokens at a time, or keeps the logits'
    gradient where all of it fits. `recomputed` writes no logits in the forward pass and computes them a
    second time in the backward pass. A target outside the vocabulary makes the loss NaN.

    Args:
        hidden: (tokens, d), contiguous, of fp32, fp16 or bf16, on CUDA.
        weight: (vocab, d), likewise.
        targets: (tokens,) of int64.
        implementation: One of `IMPLEMENTATIONS`. `recomputed` takes widths of whole 16 bytes.
        workspace_bytes: The most bytes for a chunk's logits or their gradient, though at least 128 rows
        or columns are taken. By default as many as the weight's and at least 256 MiB. `chunked` takes
        at least the logits of 4,096 tokens, and all of them where that raises no peak
        (`workspace.whole_bytes`).
        loss_dtype: The type of the result, in place of torch's.

    Raises:
        ValueError: No such implementation, or inputs of another shape, type, stride or device.
    """
    dtype = autocast_dtype(hidden.device)
    if dtype is not None:
        hidden, weight = hidden.to(dtype), weight.to(dtype)
        loss_dtype = loss_dtype or torch.float32
    loss_dtype = loss_dtype or hidden.dtype
    _require(hidden, weight, targets, implementation)
    require_loss_dtype(OP, loss_dtype)
    options = ignore_index, loss_dtype
    if implementation == "recomputed":
        n_bytes = workspace.workspace_bytes(weight) if workspace_bytes is None else workspace_bytes
        return operators.recomputed(hidden, weight, targets, *options, n_bytes)[0]
    differentiates = torch.is_grad_enabled()
    wanted = [differentiates and each.requires_grad for each in (hidden, weight)]
    n_bytes = workspace.whole_bytes(weight) if workspace_bytes is None else workspace_bytes
    if any(wanted) and _fits(hidden, weight, n_bytes):
        return operators.whole(hidden, weight, targets, *options, *wanted)[0]
    n_bytes = workspace.tokens_bytes(weight) if workspace_bytes is None else workspace_bytes
    return operators.chunked(hidden, weight, targets, *options, n_bytes, *wanted)[0]


def _fits(hidden: Tensor, weight: Tensor, n_bytes: int) -> bool:
    """Whether all logits fit. Logits of fp16 never do: hidden times the scale of a loss may leave its
    range."""
    row_bytes = workspace.row_length(weight.shape[0]) * weight.element_size()
    return hidden.dtype != torch.float16 and hidden.shape[0] * row_bytes <= n_bytes


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
