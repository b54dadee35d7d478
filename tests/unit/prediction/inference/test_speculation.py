"""Rounds of speculative decoding: on a device, and the formulas against the paper's figures, a simulation and
its own corollary. Where verifying is free the theorem holds; elsewhere less is gained."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.models.presets import model
from peakward.prediction.inference.cost import decode_step, prefill
from peakward.prediction.inference.speculation import (
    best_draft_len,
    expected_speedup,
    expected_tokens,
    speculation_floor,
)
from peakward.prediction.inference.step import step_floor
from peakward.records.inference import ServingWorkload, Speculation, SpeculationFloor

from .served import CEILINGS, replace, workload

LLAMA = model("llama-3-8b")
DRAFT = model("llama-3.2-1b")


def drafted(draft: Any = DRAFT, draft_len: int = 4, rate: float = 0.7, **other: Any) -> Any:
    speculation = Speculation(draft=draft, draft_len=draft_len, acceptance_rate=rate)
    return workload(**{"batch_size": 1, "prompt_len": 512, **other}, speculation=speculation)


def floor(load: ServingWorkload, shape: Any = LLAMA) -> SpeculationFloor:
    found = speculation_floor(shape, load, CEILINGS)
    assert found is not None
    return found


def test_without_speculation_there_is_no_round() -> None:
    assert speculation_floor(LLAMA, workload(), CEILINGS) is None


def test_a_round_is_the_drafts_steps_and_one_of_the_target() -> None:
    load = drafted()
    found = floor(load)
    draft = step_floor(decode_step(DRAFT, load, load.contexts), CEILINGS).floor_s
    plain = step_floor(decode_step(LLAMA, load, load.contexts), CEILINGS).floor_s
    verified = step_floor(decode_step(LLAMA, load, load.contexts, n_new=5), CEILINGS).floor_s
    assert found.draft_step_s == draft
    assert found.verification_s == verified
    assert found.round_s == 4 * draft + verified
    assert found.relative_cost == draft / plain
    assert found.tokens_per_round == expected_tokens(4, 0.7)
    assert found.speed_up == pytest.approx(plain * found.tokens_per_round / found.round_s)
    assert found.draft_prefill_s == step_floor(prefill(DRAFT, load), CEILINGS).floor_s


def test_one_sequence_of_a_dense_model_gains_what_the_theorem_says() -> None:
    found = floor(drafted())
    assert found.verification_cost == pytest.approx(1, abs=1e-3)
    assert found.speed_up == pytest.approx(found.ideal_speed_up, rel=1e-3)
    assert found.speed_up > 1.5


def test_a_batch_bound_by_compute_pays_for_every_token_that_it_verifies() -> None:
    found = floor(drafted(batch_size=2000, prompt_len=1, output_len=2))
    assert found.verification_cost == pytest.approx(5, rel=0.05)
    assert found.speed_up < 1
    assert (found.best_draft_len, found.best_speed_up) == (0, 1)


def test_verifying_sends_more_tokens_to_more_experts() -> None:
    draft = replace(DRAFT, vocab_size=32_000)
    found = floor(drafted(draft), model("mixtral-8x7b"))
    # Five tokens with two of eight experts each: 8 (1 - 0.75^5) = 6.1 instead of 2.
    assert found.verification_cost == pytest.approx(2.8, abs=0.1)
    assert found.speed_up < 0.5 * found.ideal_speed_up


def test_the_best_draft_gains_no_less_than_any_other() -> None:
    gains = {length: floor(drafted(draft_len=length)).speed_up for length in range(1, 9)}
    found = floor(drafted())
    assert found.best_speed_up == max(1, *gains.values())
    assert gains[found.best_draft_len] == found.best_speed_up


rates = st.floats(0, 1)
costs = st.floats(0.01, 2)


@pytest.mark.parametrize(
    ("acceptance_rate", "draft_len", "printed"),
    # Leviathan, Kalman, Matias (2023), table 1: the speed of a draft that costs nothing.
    [
        (0.6, 2, 1.96),
        (0.7, 3, 2.53),
        (0.8, 2, 2.44),
        (0.8, 5, 3.69),
        (0.9, 2, 2.71),
        (0.9, 10, 6.86),
    ],
)
def test_the_papers_table(acceptance_rate: float, draft_len: int, printed: float) -> None:
    assert expected_tokens(draft_len, acceptance_rate) == pytest.approx(printed, abs=0.005)
    assert expected_speedup(draft_len, acceptance_rate, 0.0) == pytest.approx(printed, abs=0.005)


def test_a_simulation_gives_the_expected_tokens() -> None:
    draw = random.Random(0)

    def round_tokens() -> int:
        accepted = 0
        while accepted < 4 and draw.random() < 0.7:
            accepted += 1
        return accepted + 1

    n_rounds = 40_000
    mean = sum(round_tokens() for _ in range(n_rounds)) / n_rounds
    # The standard deviation of a round is below 2: of the mean, below 0.01.
    assert mean == pytest.approx(expected_tokens(4, 0.7), abs=0.04)


@given(st.integers(0, 64), st.floats(0, 0.99))
def test_the_sum_is_the_closed_form_of_equation_1(draft_len: int, rate: float) -> None:
    closed = (1 - rate ** (draft_len + 1)) / (1 - rate)
    assert expected_tokens(draft_len, rate) == pytest.approx(closed, rel=1e-12)


@given(st.integers(0, 64))
def test_a_draft_never_accepted_gives_one_token_and_one_always_accepted_all(draft_len: int) -> None:
    assert expected_tokens(draft_len, 0.0) == 1
    assert expected_tokens(draft_len, 1e-12) == pytest.approx(1)
    assert expected_tokens(draft_len, 1.0) == draft_len + 1


@given(st.integers(0, 32), rates, costs, st.floats(1, 5))
def test_a_dearer_draft_or_verification_gains_less(
    draft_len: int, rate: float, cost: float, verification: float
) -> None:
    gain = expected_speedup(draft_len, rate, cost)
    assert expected_speedup(draft_len, rate, 2 * cost) <= gain
    assert expected_speedup(draft_len, rate, cost, verification_cost=verification) <= gain
    assert expected_speedup(0, rate, cost) == 1


@given(rates, costs)
def test_the_best_draft_beats_all_and_helps_where_acceptance_exceeds_cost(
    rate: float, cost: float
) -> None:
    best = best_draft_len(rate, cost)
    gain = expected_speedup(best, rate, cost)
    assert all(gain >= expected_speedup(draft_len, rate, cost) for draft_len in range(33))
    # Corollary 3.9: some draft helps where α > c, and one token gains (1 + α)/(1 + c).
    if rate > cost + 1e-9:
        assert best > 0
        assert gain >= (1 + rate) / (1 + cost) * (1 - 1e-12)
    if rate < cost - 1e-9:
        assert best == 0


def test_a_verification_that_grows_shortens_the_draft_or_forbids_it() -> None:
    # (1 - 0.8^9) / 0.2 / 1.4 = 3.092, against 3.082 for 7 tokens and 3.078 for 9.
    assert best_draft_len(0.8, 0.05) == 8
    # 2.952 / 1.9 = 1.554, against 1.525 for 2 tokens and 1.528 for 4.
    assert best_draft_len(0.8, 0.05, verification_cost=lambda n: 1 + n / 4) == 3
    assert best_draft_len(0.8, 0.05, verification_cost=lambda n: 1.0 + n) == 0
    assert best_draft_len(1.0, 0.1, longest=7) == 7
