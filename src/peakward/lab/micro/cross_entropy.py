"""Mean cross-entropy of logits (tokens, vocabulary): call by call, and fused."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from peakward.kernels.ops.cross_entropy.api import cross_entropy as own_cross_entropy
from peakward.lab.micro.piece import COMPILED, Compiled, Piece, chosen, drawn, sizes
from peakward.records.case import MicroCase

FLOPS = 4
"""The FLOPs of a logit: compare, subtract, exponentiate, add."""


def formula(logits: Tensor, targets: Tensor) -> Tensor:
    """mean(log Σ exp logits - logits[target]), each step a call, in at least fp32."""
    wide = logits if logits.element_size() >= 4 else logits.float()
    largest = wide.amax(-1, keepdim=True)
    log_sum = (wide - largest).exp().sum(-1, keepdim=True).log() + largest
    return (log_sum - wide.gather(-1, targets[:, None])).mean().to(logits.dtype)


def fused(logits: Tensor, targets: Tensor) -> Tensor:
    """torch's own: the logarithms of the probabilities, and from these the targets' ones."""
    return functional.cross_entropy(logits, targets)


PIECES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "call by call": formula,
    "torch": fused,
    COMPILED: formula,
    "peakward": own_cross_entropy,
}


def build(case: MicroCase) -> Piece:
    """Builds a case of sizes (tokens, vocabulary)."""
    tokens, vocabulary = sizes(case, "tokens", "vocabulary")
    logits = drawn(case, tokens, vocabulary)
    generator = torch.Generator(case.device).manual_seed(case.seed)
    targets = torch.randint(vocabulary, (tokens,), generator=generator, device=case.device)
    function = chosen(case, PIECES)
    compiled = Compiled(function) if case.piece == COMPILED else None
    call = compiled or function
    return Piece(
        run=lambda: call(logits, targets),
        inputs=(logits, targets),
        flops=FLOPS * logits.numel(),
        oracle=lambda: formula(logits.double(), targets),
        compiled=compiled,
    )
