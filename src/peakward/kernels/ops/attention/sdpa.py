"""torch's scaled_dot_product_attention, on the backend that it chooses or on a named one."""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from peakward.kernels.ops.attention.mask import causal_mask, sees_all

BACKENDS = {
    "sdpa": None,
    "sdpa-cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa-flash": SDPBackend.FLASH_ATTENTION,
    "sdpa-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa-math": SDPBackend.MATH,
}


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    window: int | None,
    bias: Tensor | None,
    backend: SDPBackend | None,
) -> Tensor:
    """As `reference.attention`; a named backend that cannot serve the inputs raises RuntimeError."""
    unmasked = sees_all(q, k)
    mask = _mask(q, window=window, bias=bias, unmasked=unmasked)
    with nullcontext() if backend is None else sdpa_kernel(backend):
        return F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            is_causal=mask is None and not unmasked,
            enable_gqa=q.shape[1] != k.shape[1],
        )


def _mask(q: Tensor, *, window: int | None, bias: Tensor | None, unmasked: bool) -> Tensor | None:
    """The mask: values to add to the scores, or where scores are allowed; None where `is_causal` says
    it all."""
    seq_len = q.shape[2]
    if bias is not None:
        mask = bias.to(q.dtype)
        if not unmasked:
            mask = mask.masked_fill(~causal_mask(seq_len, window, q.device), -torch.inf)
        # Only the math kernel takes a mask of three dimensions.
        return mask[(None,) * (4 - mask.dim())]
    if unmasked or window is None or window >= seq_len:
        return None
    return causal_mask(seq_len, window, q.device)
