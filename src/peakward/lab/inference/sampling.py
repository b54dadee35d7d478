"""The choice of the next token from logits, in pure functions."""

from math import inf

import numpy as np
import torch
from numpy.typing import NDArray
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
    # From the largest, so that a small temperature makes no infinity of it.
    least = max(by.temperature, torch.finfo(logits.dtype).tiny)
    logits = (logits - logits.amax(-1, keepdim=True)) / least
    if by.top_k is None and by.top_p is None:
        return logits.softmax(-1)
    ranked, ids = logits.sort(dim=-1, descending=True, stable=True)
    if by.top_k is not None:
        ranked[..., by.top_k :] = -inf
    if by.top_p is not None and by.top_p < 1:
        likely = ranked.softmax(-1)
        # A token is left out where those before it have the sum already; the first one never is.
        before = likely.cumsum(-1) - likely
        ranked = ranked.masked_fill((before >= by.top_p) & (before > 0), -inf)
    return torch.zeros_like(logits).scatter(-1, ids, ranked.softmax(-1))


def chosen(logits: Tensor, by: Sampling, draws: Tensor | None) -> Tensor:
    """A token for each row: (rows, vocab) → (rows,) of int64. Nothing waits for the device.

    Args:
        draws: (rows,) of fp64, uniform in [0, 1): the token is the first up to which the probabilities
            sum to more than the draw's share of them all. Sums are taken in fp64: in fp32 they are
            rounded by 6e-8, which is more than the probability of many a token of 50,000. None at
            temperature 0, which takes no draws.
    """
    if by.temperature == 0:
        return logits.argmax(-1)
    assert draws is not None
    return first_above(probabilities(logits, by), draws)


def first_above(weights: Tensor, draws: Tensor) -> Tensor:
    """The index that each draw falls on, (rows,): (rows, n) of weights, not all 0, and (rows,) of draws."""
    sums = weights.cumsum(-1, dtype=torch.float64)
    above = sums > (draws * sums[:, -1])[:, None]
    return above.to(torch.int8).argmax(-1)


def drawn(seed: int, number: int, n: int) -> NDArray[np.float64]:
    """n draws of the text of that number. They depend on nothing else, so that a text is the same in any
    company and on any device."""
    return np.random.default_rng((seed, number)).random(n)
