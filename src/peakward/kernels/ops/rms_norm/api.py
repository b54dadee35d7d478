"""RMSNorm in place of torch's, alone or of a sum that is the new residual stream."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from peakward.kernels.ops.calling import operator
from peakward.kernels.ops.launchable import require_floats, require_launchable, require_one_device


def rms_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """As torch.nn.functional.rms_norm over the last dimension, by this room's Triton kernels.

    Args:
        x: (…, width) in fp32, fp16 or bf16, of any strides; rows that one stride cannot address are
            copied first.
        normalized_shape: (width,).
        weight: (width,) in fp32, fp16 or bf16, x's or not; None for ones.
        eps: fp32's epsilon by default, because torch computes in fp32 too.

    Returns:
        A tensor of x's shape and type, contiguous, whatever the weight's type. Autocast changes
        nothing.

    Raises:
        ValueError: shapes or types that do not fit, or a device that the kernels cannot run on.
    """
    if tuple(normalized_shape) != tuple(x.shape[-1:]):
        raise ValueError(
            f"rms_norm: expected normalized_shape {tuple(x.shape[-1:])}, got "
            f"{tuple(normalized_shape)}; only the last dimension is normalised here"
        )
    return _rms_norm(x, None, weight, _epsilon(eps))[0]


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, eps: float | None = None
) -> tuple[Tensor, Tensor]:
    """rms_norm(x + residual) and x + residual, the new residual stream, in one pass.

    Args:
        x, residual: (…, width) of one shape and type; otherwise as `rms_norm`.

    Raises:
        ValueError: as `rms_norm`.
    """
    y, s, _ = _rms_norm(x, residual, weight, _epsilon(eps))
    return y, s


def _epsilon(eps: float | None) -> float:
    return torch.finfo(torch.float32).eps if eps is None else eps


@operator("peakward::add_rms_norm")
def _rms_norm(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """y, s and r of `triton.Normalised`; s is empty without a residual."""
    given = {"x": x, "residual": residual, "weight": weight}
    there = {name: each for name, each in given.items() if each is not None}
    require_floats("rms_norm", **there)
    require_launchable("rms_norm", *there.values())
    if weight is not None and weight.shape != x.shape[-1:]:
        raise ValueError(
            f"rms_norm: expected a weight of shape {tuple(x.shape[-1:])}, got {tuple(weight.shape)}"
        )
    if x.dim() == 0:
        raise ValueError("rms_norm: expected x of (…, width), got a scalar")
    if residual is not None and (residual.shape, residual.dtype) != (x.shape, x.dtype):
        raise ValueError(
            f"rms_norm: expected a residual of shape {tuple(x.shape)} in {x.dtype}, got "
            f"{tuple(residual.shape)} in {residual.dtype}"
        )
    if x.numel() == 0:
        return _as_given(x, residual)
    from peakward.kernels.ops.rms_norm import triton

    own = None if weight is None else weight.contiguous()
    with torch.cuda.device_of(x):
        y, s, r = triton.rms_norm(x, residual, own, eps)
    return y, x.new_empty(0) if s is None else s, r


@_rms_norm.register_fake
def _(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, _eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    require_one_device("rms_norm", x, residual, weight)
    return _as_given(x, residual)


def _as_given(x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The results, uninitialised."""
    s = x.new_empty(0 if residual is None else x.shape)
    r = x.new_empty(x.shape[:-1].numel(), dtype=torch.float32)
    return x.new_empty(x.shape), s, r


@operator("peakward::add_rms_norm_backward")
def _rms_norm_backward(
    gradient: Tensor, s_gradient: Tensor | None, x: Tensor, weight: Tensor | None, r: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of x, which is the residual's too, and of the weight, empty without one."""
    if x.numel() == 0:
        return x.new_empty(x.shape), x.new_zeros(0) if weight is None else torch.zeros_like(weight)
    from peakward.kernels.ops.rms_norm import triton

    own = None if weight is None else weight.contiguous()
    with torch.cuda.device_of(x):
        back, weight_gradient = triton.rms_norm_backward(gradient, s_gradient, x, own, r)
    return back, x.new_empty(0) if weight_gradient is None else weight_gradient


@_rms_norm_backward.register_fake
def _(
    _gradient: Tensor, _s_gradient: Tensor | None, x: Tensor, weight: Tensor | None, _r: Tensor
) -> tuple[Tensor, Tensor]:
    own = x.new_empty(0) if weight is None else weight.new_empty(weight.shape)
    return x.new_empty(x.shape), own


def _save(
    ctx: Any, inputs: tuple[Tensor, Tensor | None, Tensor | None, float], output: Any
) -> None:
    x, residual, weight, _ = inputs
    _, s, r = output
    ctx.save_for_backward(x if residual is None else s, weight, r)
    ctx.added = residual is not None
    ctx.set_materialize_grads(False)


def _backward(
    ctx: Any, gradient: Tensor | None, s_gradient: Tensor | None, _r: None
) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
    x, weight, r = ctx.saved_tensors
    if gradient is None:
        gradient = torch.zeros_like(x)
    back, own = _rms_norm_backward(gradient, s_gradient if ctx.added else None, x, weight, r)
    return back, back if ctx.added else None, None if weight is None else own, None


_rms_norm.register_autograd(_backward, setup_context=_save)
