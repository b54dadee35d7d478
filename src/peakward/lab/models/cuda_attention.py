"""torch's scaled_dot_product_attention as CUDA carries it out, for tensors without values on a CPU.

A CPU has one fused kernel, which takes no dropout, and writes attention out wherever that kernel cannot
serve. CUDA chooses among four (`hardware.attention_backend`), and its fused ones drop weights themselves.
The operators that are called here are CUDA's own. They have shapes on any device. What surrounds them is
from torch's `attention.cpp` (2.13).
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from peakward.hardware.attention_backend import (
    BACKENDS,
    Backend,
    ComputeCapability,
    Inputs,
    first_backend,
)

_aten = torch.ops.aten
_FLASH_ALIGNMENT = 8
"""Elements, to a multiple of which flash pads head_dim."""
_MASK_ALIGNMENT = 8
"""Elements, to a multiple of which the efficient kernel pads a mask's rows."""
_ENABLED: dict[Backend, Callable[[], bool]] = {
    "cudnn": torch.backends.cuda.cudnn_sdp_enabled,
    "flash": torch.backends.cuda.flash_sdp_enabled,
    "efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
    "math": torch.backends.cuda.math_sdp_enabled,
}


class Call(NamedTuple):
    """The arguments of `scaled_dot_product_attention`, by torch's names."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    @property
    def operands(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values."""
        return self.query, self.key, self.value

    @property
    def differentiated(self) -> bool:
        """Whether a backward pass needs statistics."""
        return torch.is_grad_enabled() and any(each.requires_grad for each in self.operands)

    @property
    def factor(self) -> float:
        """The scores' factor."""
        return self.query.shape[-1] ** -0.5 if self.scale is None else float(self.scale)


def attention(call: Call, on: ComputeCapability) -> Tensor:
    """The result, by the kernel that a GPU of that compute capability takes."""
    if call.attn_mask is not None and call.attn_mask.dtype == torch.bool:
        call = call._replace(attn_mask=_as_numbers(call.attn_mask, call.query.dtype))
    return _KERNELS[_backend(call, on)](call)


def _backend(call: Call, on: ComputeCapability) -> Backend:
    query, key, value = call.operands
    if query.dim() != 4:
        return "math"
    given = Inputs(
        dtype=str(query.dtype).removeprefix("torch."),
        head_dim=query.shape[-1],
        masked=call.attn_mask is not None or (call.is_causal and query.shape[-2] != key.shape[-2]),
        grouped=call.enable_gqa and query.shape[-3] != key.shape[-3],
        differentiated=call.differentiated,
        n_keys=key.shape[-2],
        compute_capability=on,
        value_dim=value.shape[-1],
        broadcast=any(
            each.shape[:-3] != query.shape[:-3]
            or (each.shape[-3] != query.shape[-3] and not call.enable_gqa)
            for each in (key, value)
        ),
    )
    return first_backend(given, [each for each in BACKENDS if _ENABLED[each]()])


def _cudnn(call: Call) -> Tensor:
    settings = (call.attn_mask, call.differentiated, call.dropout_p, call.is_causal, False)
    result: Tensor = _aten._scaled_dot_product_cudnn_attention(
        *call.operands, *settings, scale=call.scale
    )[0]
    return result


def _flash(call: Call) -> Tensor:
    width = call.query.shape[-1]
    padding = -width % _FLASH_ALIGNMENT
    given = [nn.functional.pad(x, (0, padding)) if padding else x for x in call.operands]
    result: Tensor = _aten._scaled_dot_product_flash_attention(
        *given, call.dropout_p, call.is_causal, False, scale=call.factor
    )[0]
    return result[..., :width] if padding else result


def _efficient(call: Call) -> Tensor:
    mask = None if call.attn_mask is None else _aligned(call.attn_mask, call)
    settings = (mask, call.differentiated, call.dropout_p, call.is_causal)
    result: Tensor = _aten._scaled_dot_product_efficient_attention(
        *call.operands, *settings, scale=call.scale
    )[0]
    return result


def _aligned(mask: Tensor, call: Call) -> Tensor:
    """The mask for every head, its rows as far apart as the efficient kernel wants them."""
    *outer, last = mask.stride()
    if last != 1 or any(each % _MASK_ALIGNMENT for each in outer):
        n_keys = mask.shape[-1]
        padding = _MASK_ALIGNMENT - n_keys % _MASK_ALIGNMENT
        mask = nn.functional.pad(mask, (0, padding))[..., :n_keys]
    return mask.expand(*call.query.shape[:3], call.key.shape[2])


def _math(call: Call) -> Tensor:
    """As `_scaled_dot_product_attention_math`, of which a CPU sees the dropout as other operators."""
    query, key, value = call.operands
    given, mask, factor = query.dtype, call.attn_mask, math.sqrt(abs(call.factor))
    if given in (torch.float16, torch.bfloat16):
        query, key, value = query.float(), key.float(), value.float()
    query = query * factor
    if call.is_causal:
        square = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device)
        mask = _as_numbers(square.tril(), query.dtype)
    if call.enable_gqa and (n_shared := query.shape[-3] // key.shape[-3]) > 1:
        key, value = (each.repeat_interleave(n_shared, -3) for each in (key, value))
    scores = query @ (key.transpose(-2, -1) * factor)
    if mask is not None:
        scores = scores + mask
    weights = _aten._safe_softmax(scores, -1)
    dropped = weights
    if call.dropout_p > 0:
        dropped = _aten.native_dropout(weights, call.dropout_p, True)[0]
    result = (dropped @ value).to(given)
    weights.to(given)  # torch's function returns them also, and its caller drops them.
    return result


def _as_numbers(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where `allowed` is true, else minus infinity."""
    zero, infinity = (
        _aten.scalar_tensor(each, dtype=dtype, device=allowed.device) for each in (0.0, -math.inf)
    )
    return torch.where(allowed, zero, infinity)


_KERNELS: dict[Backend, Callable[[Call], Tensor]] = {
    "cudnn": _cudnn,
    "flash": _flash,
    "efficient": _efficient,
    "math": _math,
}
