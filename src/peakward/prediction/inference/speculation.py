"""Speculative decoding: the tokens of a round, its least time on a device, and the best draft length.

After Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding" (2023).
In a round the draft proposes γ tokens one after another; the target scores them in one step, keeps
a first part of them and adds one token of its own. Each proposal is taken to be accepted with
probability α independently of the others.

A round's time is that of γ steps of the draft and one step of the target over γ + 1 tokens of every
sequence, each at the contexts of plain decoding. Unlike the theorem, which takes the target's step to
cost what a plain one does, this counts the arithmetic of the further tokens and the further experts
that they go to.
"""

import math
from collections.abc import Callable

from peakward.prediction.floor import Ceilings
from peakward.prediction.inference.cost import decode_step, prefill
from peakward.prediction.inference.step import step_floor
from peakward.records.inference import ServingWorkload, SpeculationFloor
from peakward.records.model_shape import ModelShape

LONGEST_DRAFT = 32
"""Draft lengths up to this are tried; published ones lie below 16."""


def speculation_floor(
    shape: ModelShape, workload: ServingWorkload, on: Ceilings
) -> SpeculationFloor | None:
    """The workload's round, and the draft length that would be best; None without speculation."""
    settings = workload.speculation
    if settings is None:
        return None

    def step_s(model: ModelShape, n_new: int = 1) -> float:
        return step_floor(decode_step(model, workload, workload.contexts, n_new=n_new), on).floor_s

    def verification_cost(draft_len: int) -> float:
        return step_s(shape, draft_len + 1) / step_s(shape)

    def gain(draft_len: int) -> float:
        cost = verification_cost(draft_len)
        return expected_speedup(draft_len, rate, relative_cost, verification_cost=cost)

    draft, draft_len, rate = settings.draft, settings.draft_len, settings.acceptance_rate
    relative_cost = step_s(draft) / step_s(shape)
    best = best_draft_len(rate, relative_cost, verification_cost=verification_cost)
    return SpeculationFloor(
        draft_prefill_s=step_floor(prefill(draft, workload), on).floor_s,
        draft_step_s=step_s(draft),
        verification_s=step_s(shape, draft_len + 1),
        round_s=draft_len * step_s(draft) + step_s(shape, draft_len + 1),
        tokens_per_round=expected_tokens(draft_len, rate),
        relative_cost=relative_cost,
        verification_cost=verification_cost(draft_len),
        speed_up=gain(draft_len),
        ideal_speed_up=expected_speedup(draft_len, rate, relative_cost),
        best_draft_len=best,
        best_speed_up=gain(best),
    )


def expected_tokens(draft_len: int, acceptance_rate: float) -> float:
    """Tokens of one round: (1 - α^(γ+1)) / (1 - α), equation 1; γ + 1 where α is 1."""
    # Summed as 1 + α + … + α^γ, which loses no digits near α = 1.
    return math.fsum(acceptance_rate**i for i in range(draft_len + 1))


def expected_speedup(
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
        key=lambda draft_len: expected_speedup(
            draft_len,
            acceptance_rate,
            relative_cost,
            verification_cost=verification_cost(draft_len),
        ),
    )
