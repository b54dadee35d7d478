"""The operators that torch knows: one forward and one backward for each layout, for every implementation.

torch.compile takes each as one opaque call. What an implementation must offer is `Implementation`.
"""

from importlib import import_module
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from peakward.kernels.ops.calling import operator
from peakward.kernels.ops.flash_attention import checks
from peakward.kernels.ops.flash_attention.rule import Packing, Rule
from peakward.kernels.ops.launchable import require_launchable, require_one_device

OP = "flash_attention"

IMPLEMENTATIONS = {
    "triton": "peakward.kernels.ops.flash_attention.triton",
    "hopper": "peakward.kernels.ops.flash_attention.hopper",
}
"""Modules by name, loaded when first called."""


class Implementation(Protocol):
    """The interface of a module of IMPLEMENTATIONS; raises ValueError where it cannot serve a request."""

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        slopes: Tensor | None,
        rule: Rule,
        packing: Packing | None = None,
    ) -> tuple[Tensor, Tensor]:
        """out, laid out as torch.empty_like(q), and lse of (batch, heads, q_len) in fp32."""

    def backward(
        self,
        dout: Tensor,
        dlse: Tensor | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        slopes: Tensor | None,
        rule: Rule,
        packing: Packing | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """dq, dk, dv, laid out as torch.empty_like of q, k and v."""


def implementation(name: str) -> Implementation:
    """
    Raises:
        ValueError: no such implementation.
    """
    _require_known(name)
    return cast(Implementation, import_module(IMPLEMENTATIONS[name]))


def _require_known(name: str) -> None:
    if name not in IMPLEMENTATIONS:
        names = ", ".join(IMPLEMENTATIONS)
        raise ValueError(f"{OP}: expected an implementation of {names}, got {name!r}")


def _require(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor | None, *_: Any) -> None:
    checks.require_dense(q, k, v)
    checks.require_slopes(slopes, q)


@operator("peakward::flash_attention", check=_require)
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slopes: Tensor | None,
    causal: bool,
    window: int | None,
    scale: float,
    name: str,
) -> tuple[Tensor, Tensor]:
    """out and lse by the implementation of that name."""
    _require_known(name)
    require_launchable(OP, q, k, v, slopes)
    with torch.cuda.device_of(q):
        return implementation(name).forward(q, k, v, slopes, Rule(causal, window, scale))


@attend.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor | None, *_: Any) -> tuple[Tensor, Tensor]:
    require_one_device(OP, q, k, v, slopes)
    return torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)


@operator("peakward::flash_attention_backward")
def attend_backward(
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    slopes: Tensor | None,
    causal: bool,
    window: int | None,
    scale: float,
    name: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk, dv."""
    with torch.cuda.device_of(q):
        return implementation(name).backward(
            _with_rows(dout),
            None if dlse is None else dlse.contiguous(),
            q,
            k,
            v,
            out,
            lse,
            slopes,
            Rule(causal, window, scale),
        )


@operator("peakward::flash_attention_packed")
def attend_packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_starts: Tensor,
    k_starts: Tensor,
    q_len: int,
    k_len: int,
    slopes: Tensor | None,
    causal: bool,
    window: int | None,
    scale: float,
    name: str,
) -> tuple[Tensor, Tensor]:
    """out and lse of packed sequences."""
    _require_known(name)
    require_launchable(OP, q, k, v, slopes, q_starts, k_starts)
    packing = Packing(q_starts, k_starts, q_len, k_len)
    with torch.cuda.device_of(q):
        return implementation(name).forward(q, k, v, slopes, Rule(causal, window, scale), packing)


@attend_packed.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_starts: Tensor,
    k_starts: Tensor,
    _q_len: int,
    _k_len: int,
    slopes: Tensor | None,
    *_: Any,
) -> tuple[Tensor, Tensor]:
    require_one_device(OP, q, k, v, slopes, q_starts, k_starts)
    return torch.empty_like(q), q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)


@operator("peakward::flash_attention_packed_backward")
def attend_packed_backward(
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    q_starts: Tensor,
    k_starts: Tensor,
    q_len: int,
    k_len: int,
    slopes: Tensor | None,
    causal: bool,
    window: int | None,
    scale: float,
    name: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk, dv of packed sequences."""
    with torch.cuda.device_of(q):
        return implementation(name).backward(
            _with_rows(dout),
            None if dlse is None else dlse.contiguous(),
            q,
            k,
            v,
            out,
            lse,
            slopes,
            Rule(causal, window, scale),
            Packing(q_starts, k_starts, q_len, k_len),
        )


def _with_rows(dout: Tensor) -> Tensor:
    """With the last dimension contiguous: that of a sum is expanded."""
    return dout if dout.stride(-1) == 1 else dout.contiguous()


def _gradients_like(
    _dout: Tensor, _dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


attend_backward.register_fake(_gradients_like)
attend_packed_backward.register_fake(_gradients_like)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, slopes, *ctx.rest = inputs
    ctx.save_for_backward(q, k, v, *output, slopes)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, out, lse, slopes = ctx.saved_tensors
    gradients = attend_backward(
        torch.zeros_like(out) if dout is None else dout,
        dlse,
        q,
        k,
        v,
        out,
        lse,
        slopes,
        *ctx.rest,
    )
    return *gradients, *(None,) * 5


def _keep_packed(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, q_starts, k_starts, q_len, k_len, slopes, *ctx.rest = inputs
    ctx.save_for_backward(q, k, v, *output, q_starts, k_starts, slopes)
    ctx.lengths = (q_len, k_len)
    ctx.set_materialize_grads(False)


def _differentiate_packed(
    ctx: Any, dout: Tensor | None, dlse: Tensor | None
) -> tuple[Tensor | None, ...]:
    q, k, v, out, lse, q_starts, k_starts, slopes = ctx.saved_tensors
    gradients = attend_packed_backward(
        torch.zeros_like(out) if dout is None else dout,
        dlse,
        q,
        k,
        v,
        out,
        lse,
        q_starts,
        k_starts,
        *ctx.lengths,
        slopes,
        *ctx.rest,
    )
    return *gradients, *(None,) * 9


attend.register_autograd(_differentiate, setup_context=_keep)
attend_packed.register_autograd(_differentiate_packed, setup_context=_keep_packed)
