"""torch's scaled_dot_product_attention, on the backend that it chooses or on a named one."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

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

_changing = threading.Lock()
_found: list[bool] = []
"""Whether cuDNN's attention was allowed, as the first of those within `unplanned` found it; an entry each."""


@contextmanager
def unplanned() -> Iterator[None]:
    """While it lasts, torch takes no attention that is planned anew for every number of tokens: that of
    cuDNN, which it takes first on Hopper.

    On an H200 a prompt whose length was new to the process took 72 to 111 ms in `2.7B`, and of 1,024 tokens
    713, where later ones of 81 to 4,096 tokens took 17 to 68. By flash a new one took 17 to 73, at most 19
    more than later ones of it, and later ones 1.03 to 1.12 times cuDNN's (`2026-11-29-h200-prompts`). The
    setting is the process's: the last of several threads leaves it as the first one found it.
    """
    settings = torch.backends.cuda
    with _changing:
        _found.append(_found[0] if _found else settings.cudnn_sdp_enabled())
        settings.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        with _changing:
            before = _found.pop()
            if not _found:
                settings.enable_cudnn_sdp(before)


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
