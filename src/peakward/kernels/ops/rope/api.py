"""Rotary position embedding of heads, in place or not, alone or inside a fused projection.

The convention is that of `rotation.api.rotate` and transformers: element i of a head is turned with
element i + head_dim/2. Cosines and sines are (seq_len, head_dim / 2), or (batch, seq_len, head_dim /
2), as `models.decoder.rotation` makes them; or head_dim wide, as those of transformers, one for each
element of a head.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from peakward.kernels.ops.calling import operator
from peakward.kernels.ops.launchable import require_floats, require_launchable, require_one_device


class _Heads(NamedTuple):
    """The number of heads in a tensor, and how many of them, from the first, are turned."""

    n_all: int
    n_turned: int

    def of(self, x: Tensor) -> Tensor:
        """(batch, heads, seq_len, head_dim): x, or a view of the projection that x is."""
        if x.dim() == 4:
            return x
        return x.view(*x.shape[:2], self.n_all, x.shape[2] // self.n_all).transpose(1, 2)


def rope(
    x: Tensor, cos: Tensor, sin: Tensor, *, n_turned: int | None = None, neighbours: bool = False
) -> Tensor:
    """x turned, as a new tensor with the layout of x.

    Args:
        x: (batch, heads, seq_len, head_dim) of any strides, in fp32, fp16 or bf16.
        cos, sin: See above; of any of these types. They get no gradient.
        n_turned: The number of heads, from the first, that are turned; the others stay as they are. All
        by default.
        neighbours: Whether element 2i is turned with 2i + 1, as in the paper (Su et al. 2021), by angle i or
        where these are head_dim wide each by its own.

    Raises:
        ValueError: Shapes or types that do not fit, or a device that the kernel cannot run on.
    """
    return _rope(x, cos, sin, _heads("rope", x, n_turned).n_turned, False, neighbours)


def rope_(x: Tensor, cos: Tensor, sin: Tensor, *, n_turned: int | None = None) -> Tensor:
    """x turned in place, and returned; otherwise as `rope`. The operator that made x must not need its
    values for its own gradient, which autograd checks. No two elements of x may share memory, as in an
    expanded tensor."""
    return _turn(x, cos, sin, _heads("rope_", x, n_turned))


def rope_qkv_(qkv: Tensor, cos: Tensor, sin: Tensor, *, n_heads: int, n_kv_heads: int) -> Tensor:
    """Queries and keys of a fused projection turned in place, and the projection returned.

    Args:
        qkv: (batch, seq_len, (n_heads + 2·n_kv_heads)·head_dim): queries, keys, values, each head
            by head, as the reference decoder's projection gives them. The last dimension is
            adjacent.

    Raises:
        ValueError: as `rope`, and a width that is not of so many heads.
    """
    if n_heads < 1 or n_kv_heads < 1:
        raise ValueError(
            f"rope_qkv_: expected n_heads and n_kv_heads of at least 1, got {n_heads} and {n_kv_heads}"
        )
    n_all = n_heads + 2 * n_kv_heads
    if qkv.dim() != 3 or qkv.shape[-1] % n_all:
        raise ValueError(
            f"rope_qkv_: expected (batch, seq_len, {n_all}·head_dim), got {tuple(qkv.shape)}"
        )
    return _turn(qkv, cos, sin, _Heads(n_all, n_heads + n_kv_heads))


def _heads(op: str, x: Tensor, n_turned: int | None) -> _Heads:
    """
    Raises:
        ValueError: no four dimensions, or fewer heads than are to be turned.
    """
    if x.dim() != 4:
        raise ValueError(
            f"{op}: expected x of (batch, heads, seq_len, an even head_dim), got {tuple(x.shape)}"
        )
    n_all = x.shape[1]
    if n_turned is not None and not 0 <= n_turned <= n_all:
        raise ValueError(f"{op}: expected n_turned from 0 to the {n_all} heads, got {n_turned}")
    return _Heads(n_all, n_all if n_turned is None else n_turned)


def _turn(x: Tensor, cos: Tensor, sin: Tensor, heads: _Heads) -> Tensor:
    """x turned in place.

    Compiled, with gradients, a new tensor takes the place of x: Dynamo does not know `mark_dirty` in
    torch 2.11.
    """
    if not (torch.is_grad_enabled() and x.requires_grad):
        _rope_(heads.of(x), cos, sin, heads.n_turned)
        return x
    if torch.compiler.is_compiling():
        apart = heads.of(x)
        apart.copy_(_rope(apart, cos, sin, heads.n_turned, False, False))
        return x
    return _InPlace.apply(x, cos, sin, heads)


class _InPlace(torch.autograd.Function):
    """torch takes no gradient formula of an operator that writes to its input.

    Of the projection, not of its heads: to what writes to a view autograd hands a copy of the gradient,
    and copies its result (8 × 4,096 × 48 heads of 128 on an H100: 2.0 ms, where compiled code took 0.45).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, heads: _Heads) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.heads = heads
        ctx.mark_dirty(x)
        _rope_(heads.of(x), cos, sin, heads.n_turned)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = gradients
        apart = ctx.heads.of(gradient)
        turned = _rope(apart, *ctx.saved_tensors, ctx.heads.n_turned, True, False)
        back = turned if gradient.dim() == 4 else turned.transpose(1, 2).flatten(-2)
        return back, None, None, None


@operator("peakward::rope_", mutates=("x",))
def _rope_(x: Tensor, cos: Tensor, sin: Tensor, n_turned: int) -> None:
    cos, sin = _checked(x, cos, sin)
    if any(size > 1 and stride == 0 for size, stride in zip(x.shape, x.stride(), strict=True)):
        raise ValueError(
            f"rope_: expected x whose elements lie apart, got strides {x.stride()} of "
            f"{tuple(x.shape)}; clone it"
        )
    from peakward.kernels.ops.rope import triton

    turned = x[:, :n_turned]
    with torch.cuda.device_of(x):
        triton.turn(turned, turned, cos, sin, n_turned=n_turned, inverse=False)


@_rope_.register_fake
def _(x: Tensor, cos: Tensor, sin: Tensor, _n_turned: int) -> None:
    require_one_device("rope", x, cos, sin)


@operator("peakward::rope")
def _rope(  # noqa: PLR0917
    x: Tensor, cos: Tensor, sin: Tensor, n_turned: int, inverse: bool, neighbours: bool
) -> Tensor:
    cos, sin = _checked(x, cos, sin)
    from peakward.kernels.ops.rope import triton

    with torch.cuda.device_of(x):
        return triton.rope(x, cos, sin, n_turned=n_turned, inverse=inverse, neighbours=neighbours)


@_rope.register_fake
def _(
    x: Tensor, cos: Tensor, sin: Tensor, _n_turned: int, _inverse: bool, _neighbours: bool
) -> Tensor:
    require_one_device("rope", x, cos, sin)
    return torch.empty_like(x)


def _checked(x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin, contiguous.

    Raises:
        ValueError: what the kernel cannot take.
    """
    require_floats("rope", x=x, cos=cos, sin=sin)
    require_launchable("rope", x, cos, sin)
    if x.shape[-1] % 2:
        raise ValueError(
            f"rope: expected x of (batch, heads, seq_len, an even head_dim), got {tuple(x.shape)}"
        )
    batch, _, seq_len, head_dim = x.shape
    expected = (seq_len, head_dim // 2)
    of_batches = [(seq_len,), (batch, seq_len)]
    taken = [(*each, width) for each in of_batches for width in (head_dim // 2, head_dim)]
    for name, each in (("cos", cos), ("sin", sin)):
        if tuple(each.shape) not in taken or each.shape != cos.shape:
            raise ValueError(
                f"rope: expected {name} of shape {expected} or {(batch, *expected)}, or twice as wide, both "
                f"alike, got {tuple(each.shape)}"
            )
    return cos.contiguous(), sin.contiguous()


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 (torch's name)
    _, cos, sin, ctx.n_turned, ctx.inverse, ctx.neighbours = inputs
    ctx.save_for_backward(cos, sin)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None, None]:
    how = ctx.n_turned, not ctx.inverse, ctx.neighbours
    return _rope(gradient, *ctx.saved_tensors, *how), None, None, None, None, None


_rope.register_autograd(_backward, setup_context=_save)
