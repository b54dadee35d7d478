"""LayerNorm in place of torch's, alone or of a sum that is the new residual stream."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from peakward.kernels.ops.calling import operator
from peakward.kernels.ops.launchable import require_floats, require_launchable, require_one_device

EPS = 1e-5
"""The epsilon of torch, where none is given."""


def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = EPS,
) -> Tensor:
    """As torch.nn.functional.layer_norm over the last dimension, by this room's Triton kernels.

    Args:
        x: (…, width) in fp32, fp16 or bf16, of any strides; rows that one stride cannot address are
            copied first.
        normalized_shape: (width,).
        weight, bias: (width,) in fp32, fp16 or bf16, x's or not; None for ones and zeros.

    Returns:
        A tensor of x's shape and type, contiguous, whatever the parameters' types. Autocast changes
        nothing.

    Raises:
        ValueError: shapes or types that do not fit, or a device that the kernels cannot run on.
    """
    if tuple(normalized_shape) != tuple(x.shape[-1:]):
        raise ValueError(
            f"layer_norm: expected normalized_shape {tuple(x.shape[-1:])}, got "
            f"{tuple(normalized_shape)}; only the last dimension is normalised here"
        )
    return _layer_norm(x, None, weight, bias, eps)[0]


def add_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = EPS,
) -> tuple[Tensor, Tensor]:
    """layer_norm(x + residual) and x + residual, the new residual stream, in one pass.

    Args:
        x, residual: (…, width) of one shape and type; otherwise as `layer_norm`.

    Raises:
        ValueError: as `layer_norm`.
    """
    y, s, *_ = _layer_norm(x, residual, weight, bias, eps)
    return y, s


@operator("peakward::add_layer_norm")
def _layer_norm(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y, s, mean and r of `triton.Normalised`; s is empty without a residual."""
    parameters = {"weight": weight, "bias": bias}
    given = {"x": x, "residual": residual, **parameters}
    there = {name: each for name, each in given.items() if each is not None}
    require_floats("layer_norm", **there)
    require_launchable("layer_norm", *there.values())
    for name, each in parameters.items():
        if each is not None and each.shape != x.shape[-1:]:
            raise ValueError(
                f"layer_norm: expected a {name} of shape {tuple(x.shape[-1:])}, got "
                f"{tuple(each.shape)}"
            )
    if x.dim() == 0:
        raise ValueError("layer_norm: expected x of (…, width), got a scalar")
    if residual is not None and (residual.shape, residual.dtype) != (x.shape, x.dtype):
        raise ValueError(
            f"layer_norm: expected a residual of shape {tuple(x.shape)} in {x.dtype}, got "
            f"{tuple(residual.shape)} in {residual.dtype}"
        )
    if x.numel() == 0:
        return _as_given(x, residual)
    from peakward.kernels.ops.layer_norm import triton

    own, own_bias = (None if each is None else each.contiguous() for each in (weight, bias))
    with torch.cuda.device_of(x):
        y, s, mean, r = triton.layer_norm(x, residual, own, own_bias, eps)
    return y, x.new_empty(0) if s is None else s, mean, r


@_layer_norm.register_fake
def _(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, _eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    require_one_device("layer_norm", x, residual, weight, bias)
    return _as_given(x, residual)


def _as_given(x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The results, uninitialised."""
    s = x.new_empty(0 if residual is None else x.shape)
    mean, r = (x.new_empty(x.shape[:-1].numel(), dtype=torch.float32) for _ in range(2))
    return x.new_empty(x.shape), s, mean, r


@operator("peakward::add_layer_norm_backward")
def _layer_norm_backward(  # noqa: PLR0917
    gradient: Tensor,
    s_gradient: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    r: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, which is the residual's too, of weight and of bias, empty without one."""
    if x.numel() == 0:
        return x.new_empty(x.shape), _zeros(weight, x), _zeros(bias, x)
    from peakward.kernels.ops.layer_norm import triton

    own = None if weight is None else weight.contiguous()
    with torch.cuda.device_of(x):
        found = triton.layer_norm_backward(gradient, s_gradient, x, own, bias, mean, r)
    nothing = x.new_empty(0)
    return (
        found.x,
        nothing if found.weight is None else found.weight,
        nothing.clone() if found.bias is None else found.bias,
    )


@_layer_norm_backward.register_fake
def _(
    _gradient: Tensor,
    _s_gradient: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    _mean: Tensor,
    _r: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), _zeros(weight, x), _zeros(bias, x)


def _zeros(parameter: Tensor | None, x: Tensor) -> Tensor:
    return x.new_empty(0) if parameter is None else parameter.new_zeros(parameter.shape)


def _save(ctx: Any, inputs: tuple[Tensor | None, ...], output: tuple[Tensor, ...]) -> None:
    x, residual, weight, bias, _ = inputs
    _, s, mean, r = output
    ctx.save_for_backward(x if residual is None else s, weight, bias, mean, r)
    ctx.added = residual is not None
    ctx.set_materialize_grads(False)


def _backward(
    ctx: Any, gradient: Tensor | None, s_gradient: Tensor | None, _mean: None, _r: None
) -> tuple[Tensor | None, ...]:
    x, weight, bias, mean, r = ctx.saved_tensors
    if gradient is None:
        gradient = torch.zeros_like(x)
    back, own, own_bias = _layer_norm_backward(
        gradient, s_gradient if ctx.added else None, x, weight, bias, mean, r
    )
    return (
        back,
        back if ctx.added else None,
        None if weight is None else own,
        None if bias is None else own_bias,
        None,
    )


_layer_norm.register_autograd(_backward, setup_context=_save)
