"""A round on a device: where verifying is free the theorem holds, and where not, less is gained."""

from typing import Any

import pytest

from peakward.models.presets import model
from peakward.prediction.inference.cost import decode_step, prefill
from peakward.prediction.inference.rounds import speculation_floor
from peakward.prediction.inference.speculation import expected_tokens
from peakward.prediction.inference.step_floor import step_floor
from peakward.records.inference import ServingWorkload, Speculation, SpeculationFloor

from .served import H100, replace, workload

LLAMA = model("llama-3-8b")
DRAFT = model("llama-3.2-1b")


def drafted(draft: Any = DRAFT, draft_len: int = 4, rate: float = 0.7, **other: Any) -> Any:
    speculation = Speculation(draft=draft, draft_len=draft_len, acceptance_rate=rate)
    return workload(**{"batch_size": 1, "prompt_len": 512, **other}, speculation=speculation)


def floor(load: ServingWorkload, shape: Any = LLAMA) -> SpeculationFloor:
    found = speculation_floor(shape, load, H100)
    assert found is not None
    return found


def test_without_speculation_there_is_no_round() -> None:
    assert speculation_floor(LLAMA, workload(), H100) is None


def test_a_round_is_the_drafts_steps_and_one_of_the_target() -> None:
    load = drafted()
    found = floor(load)
    draft = step_floor(decode_step(DRAFT, load, load.contexts), H100).floor_s
    plain = step_floor(decode_step(LLAMA, load, load.contexts), H100).floor_s
    verified = step_floor(decode_step(LLAMA, load, load.contexts, n_new=5), H100).floor_s
    assert found.draft_step_s == draft
    assert found.verification_s == verified
    assert found.round_s == 4 * draft + verified
    assert found.relative_cost == draft / plain
    assert found.tokens_per_round == expected_tokens(4, 0.7)
    assert found.speed_up == pytest.approx(plain * found.tokens_per_round / found.round_s)
    assert found.draft_prefill_s == step_floor(prefill(DRAFT, load), H100).floor_s


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
