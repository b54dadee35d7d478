"""What searches find on two stored subjects, within their budgets, in simulated seconds."""

import msgspec
import pytest

from peakward.report.run.investigation import read
from peakward.tune import pipeline

from .simulated import LLAMA, NANOGPT, searched

OTHER_PRECISIONS = {("precision", each) for each in ("tf32", "bf16-mixed", "fp16-mixed", "fp8")}


@pytest.fixture
def search(studies, monkeypatch):
    def carried_out(subject, budget_s):
        study, lab = searched(studies, subject, budget_s, monkeypatch)
        assert lab.now_s <= budget_s
        return study, lab

    return carried_out


def kept(study):
    return [name for step in read(study).steps for name in step.levers]


def slower(subject, by):
    parts = ("build_s", "compile_s", "check_s", "profile_s", "start_s", "begun_s")
    return msgspec.structs.replace(subject, **{each: by * getattr(subject, each) for each in parts})


def test_nanogpt_is_compiled_in_four_minutes(search):
    """The stored run ended with bf16 and the fused optimiser, and the one after it with nothing."""
    study, lab = search(NANOGPT, 240.0)
    assert kept(study) == ["bf16", "compile", "fused-optimizer"]
    assert all(step.stage == "confirmed" for step in read(study).steps)
    assert read(study).direct.time_ratio.estimate == pytest.approx(0.0240 / 0.2345, rel=0.01)
    assert lab.counts["oracle"] == 1, "three levers and the whole share it"
    assert lab.counts["checked"] == 4
    assert lab.counts["screening"] <= 2


def test_with_more_time_what_gains_on_top_of_the_proved_is_found(search):
    study, lab = search(NANOGPT, 600.0)
    assert kept(study) == ["bf16", "compile", "fused-optimizer", "cuda-graphs"]
    assert lab.counts["oracle"] <= 3


def test_attention_that_was_seen_written_out_is_replaced_with_the_rest(search, monkeypatch):
    """minGPT's: a search of 185 s (H200) left it so, 34.1 ms for nanoGPT's 24.4 with the same blocks."""
    written = msgspec.structs.replace(
        NANOGPT,
        ratios=NANOGPT.ratios | {("attention", "sdpa"): 0.836},
        compiled=NANOGPT.compiled | {("attention", "sdpa"): 24.4 / 34.1},
    )
    assert "sdpa" not in kept(search(written, 185.0)[0])
    monkeypatch.setattr(pipeline, "unwritten_of", lambda _told: {"sdpa", "flash"})
    assert kept(search(written, 185.0)[0]) == ["bf16", "compile", "sdpa", "fused-optimizer"]


def test_where_time_is_left_the_whole_model_takes_the_place_of_its_blocks(search):
    """By hand nanoGPT's took 24.1 ms so and 25.8 by blocks (H100); what is usual says otherwise."""
    compiled = NANOGPT.compiled | {("compile_scope", "model"): 24.1 / 25.8}
    study, _ = search(msgspec.structs.replace(NANOGPT, compiled=compiled), 600.0)
    assert {"bf16", "compile-model", "fused-optimizer"} <= set(kept(study))
    assert "compile" not in kept(study)


def test_llama_is_compiled_in_150_seconds(search):
    """The stored run screened twelve levers and confirmed nothing."""
    study, lab = search(LLAMA, 150.0)
    assert kept(study) == ["compile", "fused-optimizer"]
    assert read(study).direct.time_ratio.estimate == pytest.approx(0.764, rel=0.01)
    assert lab.counts["screening"] == 1
    assert lab.counts["process"] == 3


@pytest.mark.parametrize("subject", [NANOGPT, LLAMA], ids=["nanogpt", "llama"])
def test_other_precisions_are_not_screened_on_bf16(search, subject):
    """Of the stored run's 240 s on nanoGPT's model 31 went there, and 15 of the 150 s on Llama-1B."""
    _, lab = search(subject, 600.0)
    on_bf16 = [each for each in lab.screened if each & OTHER_PRECISIONS and len(each) > 1]
    assert on_bf16 == []
    if subject is LLAMA:
        assert not any(each & OTHER_PRECISIONS for each in lab.screened)


@pytest.mark.parametrize("subject", [NANOGPT, LLAMA], ids=["nanogpt", "llama"])
@pytest.mark.parametrize(("by", "budget_s"), [(1.0, 90), (1.0, 120), (1.5, 150), (2.0, 240)])
def test_a_small_budget_ends_with_a_confirmed_composition(search, subject, by, budget_s):
    study, _ = search(slower(subject, by), budget_s)
    assert kept(study)
    assert all(step.verdict == "kept" for step in read(study).steps)


def test_what_no_time_is_left_to_confirm_is_not_screened(search):
    study, lab = search(NANOGPT, 80.0)
    assert kept(study) == []
    assert lab.counts["screening"] == 0
    assert study.unfinished is not None


def test_a_composition_that_disappoints_is_taken_apart(search):
    """Compiled, this step would be half as fast again."""
    ratios = LLAMA.ratios | {("compile", "default"): 1.5}
    study, lab = search(msgspec.structs.replace(LLAMA, ratios=ratios, compiled={}), 400.0)
    assert "compile" not in kept(study)
    assert {"fused-norm", "fused-loss"} <= set(kept(study))
    assert lab.screened[1] == {("compile", "default"), ("optimizer", "adamw-fused")}
