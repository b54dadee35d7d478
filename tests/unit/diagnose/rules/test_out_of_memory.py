"""What does not fit."""

import msgspec
import pytest

from peakward.diagnose.diagnosis_input import Symptom
from peakward.models.presets import model

from .made import abstains, case, foretold, given, judge, measurement


@pytest.mark.parametrize("seq_len", [16384, 32768])
def test_long_naive_attention_is_told_by_its_scores(seq_len):
    given = foretold(case(workload={"batch_size": 4, "seq_len": seq_len}))
    found = judge("MEM001", given)
    assert isinstance(found, Symptom)
    assert found.held_back_bytes > 0
    scores = next(each for each in found.evidence if "score matrix" in each.name)
    assert scores.value == 4 * 12 * seq_len**2 * 4
    assert {"sdpa", "checkpointing"} <= set(found.levers)


def test_a_measured_oom_counts_without_a_forecast():
    failed = measurement(case(), status="oom", summary=None)
    found = judge("MEM001", given(case=case(), measurement=failed, site=None))
    assert isinstance(found, Symptom)
    assert found.held_back_bytes is None


def test_silent_where_it_ran_or_fits():
    assert judge("MEM001", given(case=case(), measurement=measurement(case()))) is None
    assert judge("MEM001", foretold(case())) is None


def test_without_either():
    assert abstains("MEM001", given())


def test_logits_that_take_half_of_the_peak_are_told_by_the_loss_that_never_has_them():
    work = {"batch_size": 256, "seq_len": 512}
    shape = msgspec.structs.replace(model("llama-3-8b"), n_layers=1)
    given = foretold(case(shape=shape, workload=work, attention="sdpa", precision="bf16"))
    found = judge("MEM001", given)
    assert isinstance(found, Symptom)
    logits = next(each for each in found.evidence if "logits" in each.name)
    assert logits.value >= 256 * 512 * 128_256 * 2
    assert found.advice.startswith("a loss that has the output layer in it")
    assert {"chunked-loss", "recomputed-loss"} <= set(found.levers)
