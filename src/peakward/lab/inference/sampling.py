"""The choice of the next token from logits, in pure functions."""

from math import inf

import torch
from torch import Tensor

from peakward.records.generation import Sampling


def probabilities(logits: Tensor, by: Sampling) -> Tensor:
    """The probability of each token: (…, vocab) → the same shape, in at least fp32.

    In this order: the logits are divided by the temperature, those below the k-th largest are left out,
    and of the rest the likeliest are kept until their probabilities sum to top_p (Holtzman et al. 2020).
    Of equal logits at either boundary, those of lower ids are kept. At temperature 0 the likeliest token
    has probability 1.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if by.temperature == 0:
        return torch.zeros_like(logits).scatter(-1, logits.argmax(-1, keepdim=True), 1.0)
    logits = logits / by.temperature
    if by.top_k is None and by.top_p is None:
        return logits.softmax(-1)
    ranked, ids = logits.sort(dim=-1, descending=True, stable=True)
    if by.top_k is not None:
        ranked[..., by.top_k :] = -inf
    if by.top_p is not None:
        likely = ranked.softmax(-1)
        # A token is left out where those before it have the sum already; the first one never is.
        before = likely.cumsum(-1) - likely
        ranked = ranked.masked_fill((before >= by.top_p) & (before > 0), -inf)
    return torch.zeros_like(logits).scatter(-1, ids, ranked.softmax(-1))


def chosen(logits: Tensor, by: Sampling, generator: torch.Generator) -> Tensor:
    """A token for each row: (rows, vocab) → (rows,) of int64. Nothing waits for the device.

    A token is the first arrival of independent processes whose rates are the probabilities: the least of
    exponential numbers, each divided by its rate, which falls on each token with its probability.
    """
    if by.temperature == 0:
        return logits.argmax(-1)
    rates = probabilities(logits, by)
    waits = torch.empty_like(rates).exponential_(1.0, generator=generator)
    return (rates / waits).argmax(-1)
