"""Texts of a small real file with guesses and without, and the times of a round's parts."""

import pytest
import torch

from gguf_files import small_model
from peakward.lab.inference import speed
from peakward.records.case import SpeculationCase
from peakward.records.errors import PeakwardError

pytest.importorskip("tokenizers")


@pytest.fixture
def made(in_tmp, monkeypatch):
    small_model(in_tmp / "small.gguf")
    monkeypatch.setattr(speed, "PROMPTS", ("hell, hell,", "a hell", "he"))

    def make(**changes):
        case = {
            "model": "small.gguf",
            "draft": "ngrams",
            "guesses": 3,
            "n_prompts": 3,
            "n_new_tokens": 12,
            "device": "cpu",
        }
        told = []
        return speed.speculated(SpeculationCase(**case | changes), told.append), told

    return make


@pytest.mark.parametrize(
    ("draft", "share"),
    [("ngrams", 0.0), ("skip:1", 0.55), ("distilled:1", 0.6), ("small.gguf", 1.0)],
)
def test_counts_and_times(draft, share, made):
    found, told = made(draft=draft)
    own = found.speculated
    assert told == [1, 2, 3]
    assert (len(found.run.steps_s), len(own.plain_s), own.n_equal) == (3, 3, 3)
    assert sum(own.accepted) == own.n_rounds
    if draft == "small.gguf":  # The model itself: a round makes four tokens.
        assert own.accepted == (0, 0, 0, 3 * 3)
    assert own.draft_parameters == pytest.approx(share * found.n_parameters, rel=0.3)
    assert own.step_s > 0 < own.check_s
    assert (own.draft_s > 0) == (draft != "ngrams")


def test_weights_of_fewer_bits_are_the_model_that_guesses_are_held_to(made):
    dense, _ = made()
    found, _ = made(weights="int8", precision="bf16")
    assert found.speculated.n_equal == 3
    assert found.n_parameters == dense.n_parameters


@pytest.mark.parametrize("how", [{"kv_cache": "int8"}, {"precision": "bf16"}], ids=str)
def test_passes_are_made_as_they_are_asked_for(how, made, monkeypatch):
    seen = set()
    decoding_of = speed.decoding_of

    def spied(found, *rest, **options):
        decoding = decoding_of(found, *rest, **options)
        seen.add((found.model.embedding.weight.dtype, decoding.cache.storage.keys.dtype))
        return decoding

    monkeypatch.setattr(speed, "decoding_of", spied)
    found, _ = made(**how)
    assert found.speculated.check_s > 0
    dtype = torch.bfloat16 if how.get("precision") else torch.float32
    assert seen == {(dtype, torch.int8 if how.get("kv_cache") else dtype)}


def test_a_fused_step_of_a_model_that_its_kernels_do_not_take_is_refused(made, monkeypatch):
    monkeypatch.setattr(speed, "taken", lambda *_: "separate")
    with pytest.raises(PeakwardError, match="expected a model that the fused step takes"):
        made(decode_step="fused")


@pytest.mark.parametrize("wrong", [{"guesses": 0}, {"n_prompts": 4}, {"n_new_tokens": 1}], ids=str)
def test_cases_that_make_no_sense(wrong, made):
    with pytest.raises(PeakwardError, match="expected 1 to 3 prompts, a guess and two new tokens"):
        made(**wrong)
