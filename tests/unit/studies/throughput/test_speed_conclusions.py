"""What `throughput` concludes of speed."""

import pytest

from peakward.studies import throughput
from peakward.studies.throughput.speed import read
from peakward.studies.throughput.speed_conclusions import speed


@pytest.fixture
def said(setting, gathered):
    def make(scope="corners", **options):
        here = setting(scope)
        return speed(read(gathered(throughput, here, **options), here))

    return make


def test_each_precision_and_pass_has_its_range(said, figures):
    told = said()
    assert len(told) == 4
    assert figures(told[0])["least speed-up"] == pytest.approx(5.0)
    assert figures(told[1])["speed-up of 2.7B"] == pytest.approx(8.0)


def test_growth_with_the_sequence_needs_three_lengths(said, figures):
    assert not any("power" in each.text for each in said("corners"))
    (fp32, *_) = [each for each in said("full") if "power" in each.text]
    assert fp32.text.startswith("In fp32 the train step of 2.7B")
    told = figures(fp32)
    assert told["exponent"] == pytest.approx(1.0, abs=0.1)
    assert told["exponent, low end"] < told["exponent"] < told["exponent, high end"]
    seconds = {each.quantity for each in fp32.evidence if each.unit == "s"}
    assert seconds == {"time at the shortest", "time at the longest"}, "so that doubts show"


def test_without_fp32_nothing_is_gained(said):
    def no_fp32(case):
        return "oom" if case.configuration.precision == "fp32" else None

    assert [each for each in said(overrule=no_fp32) if "speed of fp32" in each.text] == []


def test_the_report_says_what_is_called_flash_attention(setting, gathered):
    here = setting()
    notes = throughput.parts(gathered(throughput, here), here).notes
    assert any("torch's scaled_dot_product_attention" in each for each in notes)
