"""What `vectorization` concludes from known figures."""

import msgspec
import pytest

from peakward.records.calibration import MatmulRate
from peakward.records.measurement import Validity
from peakward.studies import doubts, vectorization


def test_what_it_says(made, figures):
    conclusions = made().conclusions
    said = [each.text for each in conclusions]
    assert said[0] == (
        "A product of 128 × 128: python loops takes 500× the time of numpy (490× to 510× within "
        "one process of each)."
    )
    assert said[2].startswith("A product of 2048 × 2048: numpy takes 2.00× the time of torch")
    assert figures(conclusions[3])["exponent"] == pytest.approx(3)
    # A slope of three known to 1% each, over a factor of 4: the ends are ±√2 % / ln 4 away.
    assert figures(conclusions[3])["exponent, high end"] == pytest.approx(3.01, abs=0.001)
    assert said[-1].startswith("The largest difference of torch in fp32 from fp64 is 1.00e-7")


def test_an_exponent_of_doubtful_times_says_so(setting, gathered):
    here = setting("small", "cpu")
    readings = gathered(vectorization, here)
    parts = vectorization.parts(readings, here)
    shaky = [
        msgspec.structs.replace(each, validity=Validity(verdict="unstable", reasons=("a reason",)))
        for each in readings
    ]
    (grown,) = [each for each in doubts.marked(parts.conclusions, shaky) if "power of" in each.text]
    assert grown.text.endswith("(Both times behind it are unstable or throttled.)")


def test_shares_are_said_to_be_of_a_measured_product(setting, calibration, gathered, figures):
    here = setting("small", "cpu")
    rates = tuple(
        MatmulRate(compute_type="fp32", size=n, flops_per_s=rate)
        for n, rate in ((1024, 2e9), (2048, 4e9))
    )
    readings = gathered(vectorization, here)
    readings.calibration = msgspec.structs.replace(calibration("cpu"), matmul=rates)
    parts = vectorization.parts(readings, here)
    *_, (said) = [each for each in parts.conclusions if "square product" in each.text]
    assert (
        "of the fastest square product of torch measured here in fp32, 4.00 GFLOP/s at n = 2,048"
        in (said.text)
    )
    assert figures(said)["share of the square product"] == pytest.approx(
        figures(said)["rate"] / 4e9
    )
    assert not any("peak" in each.text for each in parts.conclusions)


def test_of_nothing_nothing_is_said(made):
    assert made(overrule=lambda case: "crashed").conclusions == ()
