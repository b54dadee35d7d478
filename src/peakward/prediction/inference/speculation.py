"""Speculative decoding: tokens of a round, its speed-up, and the best draft length.

After Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding" (2023).
In a round the draft proposes γ tokens one after another; the target scores them in one step, keeps
a first part of them and adds one token of its own. Each proposal is taken to be accepted with
probability α independently of the others.
"""

import math
from collections.abc import Callable

LONGEST_DRAFT = 32
"""Draft lengths up to this are tried; published ones lie below 16."""


def expected_tokens(draft_len: int, acceptance_rate: float) -> float:
    """Tokens of one round: (1 - α^(γ+1)) / (1 - α), equation 1; γ + 1 where α is 1."""
    # Summed as 1 + α + … + α^γ, which loses no digits near α = 1.
    return math.fsum(acceptance_rate**i for i in range(draft_len + 1))


def speed_up(
    draft_len: int,
    acceptance_rate: float,
    relative_cost: float,
    *,
    verification_cost: float = 1.0,
) -> float:
    """Time of plain decoding over that of speculative decoding, expected.

    With a verification cost of 1 this is theorem 3.8: (1 - α^(γ+1)) / ((1 - α)(γc + 1)).

    Args:
        draft_len: γ; 0 is plain decoding.
        acceptance_rate: α, from 0 to 1.
        relative_cost: time of a draft step over that of a target step: c.
        verification_cost: time of a target step over γ + 1 tokens over that of one over 1 token;
            above 1 where the target is bound by compute, or where more tokens go to more experts.
    """
    round_cost = draft_len * relative_cost + verification_cost
    return expected_tokens(draft_len, acceptance_rate) / round_cost


def best_draft_len(
    acceptance_rate: float,
    relative_cost: float,
    *,
    verification_cost: Callable[[int], float] = lambda _draft_len: 1.0,
    longest: int = LONGEST_DRAFT,
) -> int:
    """The draft length from 0 to `longest` of the highest speed-up, the shortest of equal ones.

    All are tried, for a verification that turns compute-bound may give more than one peak. With a
    verification cost of 1 it is above 0 exactly where α > c (corollary 3.9).
    """
    return max(
        range(longest + 1),
        key=lambda draft_len: speed_up(
            draft_len,
            acceptance_rate,
            relative_cost,
            verification_cost=verification_cost(draft_len),
        ),
    )
