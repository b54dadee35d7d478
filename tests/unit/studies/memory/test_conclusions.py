"""What is said of memory follows from the records, and nothing is said without them."""

import math

import msgspec
import pytest

from peakward.studies import memory
from peakward.studies.memory import conclusions
from peakward.studies.memory.grid import longest, read
from peakward.studies.power_law import exponent

LENGTHS = (128, 512, 1024)


@pytest.fixture
def cells(setting, gathered):
    here = setting()
    return read(gathered(memory, here), here)


def test_shares_of_the_peak_add_up(cells, figures):
    said = conclusions.shares(longest(cells))
    assert len(said) == 4
    found = figures(said[0])
    assert found.pop("peak of the step") == longest(cells)[0].peak.allocated_bytes
    assert math.fsum(found.values()) == pytest.approx(1)
    assert "small 4 × 1024 train_step in fp32 holds most in the phase backward" in said[0].text


def test_growth_with_the_sequence_length(cells, figures):
    said = conclusions.growth(cells)
    assert len(said) == 4
    found = figures(said[0])
    assert found["exponent of the softmax's"] == pytest.approx(2)
    whole = exponent(LENGTHS, [n * 2**20 + n**2 for n in LENGTHS])
    assert found["exponent of activations"] == pytest.approx(whole)
    assert found["softmax's share of activations, longest"] == pytest.approx(1024 / (2**20 + 1024))
    assert said[0].text.startswith("From 128 to 1024 tokens the activations of small in fp32 grow")


def test_a_record_without_casts_of_weights_says_that_they_are_among_the_activations(
    setting, gathered
):
    here = setting()
    readings = gathered(memory, here)
    assert not any(
        "casts of weights" in each.text for each in memory.parts(readings, here).conclusions
    )
    for each in readings.memory:
        before = tuple(name for name in each.purposes if name != "weight_casts")
        timeline = tuple(
            msgspec.structs.replace(point, n_bytes=point.n_bytes[:2] + point.n_bytes[3:])
            for point in each.timeline
        )
        readings.add_memory(msgspec.structs.replace(each, purposes=before, timeline=timeline))
    parts = memory.parts(readings, here)
    told = [each.text for each in parts.conclusions if "casts of weights" in each.text]
    assert len(told) == 2 + 2 + 2, "shares, growth and what a block keeps, of two models"
    assert all("bf16-mixed" in each for each in told), "in fp32 nothing is cast"
    assert any("Not measured in this record: casts of weights" in each for each in parts.notes)


def test_two_lengths_give_no_exponent(cells):
    assert conclusions.growth([each for each in cells if each.case.workload.seq_len != 512]) == ()


def test_what_a_block_keeps(cells, figures):
    said = conclusions.residual(longest(cells))
    one, n = figures(said[0]).values()
    assert one * n == pytest.approx(1024 * 2**20 + 1024**2)


def test_predictions_from_the_least_to_the_most(cells, figures):
    (said,) = conclusions.predicted(cells)
    ratios = [cell.predicted_over_actual for cell in cells if cell.predicted_over_actual]
    found = figures(said)
    assert found["cases"] == len(ratios)
    assert found["predicted over held, least"] == min(ratios)
    assert found["predicted over held, most"] == max(ratios)


def test_nothing_is_said_of_what_did_not_run(setting, gathered):
    here = setting()
    readings = gathered(memory, here, overrule=lambda case: "oom")
    assert memory.parts(readings, here).conclusions == ()
