"""Attention that keeps its scores, and attention by a slow kernel."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from faults.decoder import SIZES, Parts, decoder, of_layers, tokens, training
from faults.lab import Lab, Step
from faults.records import Fault, Seen


def by_formulas(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q kᵀ / √d) v, the future masked."""
    length = q.shape[-2]
    future = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).masked_fill(future, float("-inf"))
    return scores.softmax(-1) @ v


def with_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """An additive mask in place of `is_causal`."""
    length = q.shape[-2]
    mask = torch.full((length, length), float("-inf"), dtype=q.dtype, device=q.device).triu(1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def efficient(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """torch told to take its memory-efficient kernel."""
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _observe(lab: Lab, n_layers: float, faulty: Parts, name: str) -> Seen:
    sizes = SIZES[lab.device]._replace(n_layers=4)
    if lab.device == "cpu":  # Narrow and long, so that scores are much of the work.
        sizes = sizes._replace(d_model=128, n_heads=4, seq_len=1024)

    def build() -> Step:
        model = decoder(sizes, lab.device, *of_layers(sizes, n_layers, faulty))
        return training(model, tokens(sizes, lab.device))

    return lab.traced(build, name=f"{name}-{n_layers:g}")


def _fault(code: str, name: str, faulty: Parts, needs: str) -> Fault:
    return Fault(
        code,
        name,
        "of 4 layers",
        (1, 2, 4),
        lambda lab, n: _observe(lab, n, faulty, name.replace(" ", "-")),
        needs,
    )


FAULTS = (
    _fault("ATTN001", "attention by formulas", Parts(attend=by_formulas), "any"),
    _fault("ATTN002", "an additive mask", Parts(attend=with_mask), "cuda"),
    _fault("ATTN002", "the memory-efficient kernel", Parts(attend=efficient), "cuda"),
)
