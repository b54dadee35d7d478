"""torch's scaled_dot_product_attention, on the backend that it chooses or on a named one."""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from peakward.lab.ops.attention.mask import causal_mask

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
    seq_len = q.shape[2]
    mask = None
    if bias is not None:
        allowed = causal_mask(seq_len, window, q.device)
        mask = bias.to(q.dtype).masked_fill(~allowed, -torch.inf)
        # A mask of three dimensions is taken by the math kernel alone.
        mask = mask[(None,) * (4 - mask.dim())]
    elif window is not None and window < seq_len:
        mask = causal_mask(seq_len, window, q.device)
    with nullcontext() if backend is None else sdpa_kernel(backend):
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=q.shape[1] != k.shape[1]
        )
