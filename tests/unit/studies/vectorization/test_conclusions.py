"""What `vectorization` concludes from known figures."""

import pytest


def test_what_it_says(made, figures):
    conclusions = made().conclusions
    said = [each.text for each in conclusions]
    assert said[0] == (
        "A product of 128 × 128: python loops takes 500× the time of numpy (490× to 510× by their "
        "intervals)."
    )
    assert said[2].startswith("A product of 2048 × 2048: numpy takes 2.00× the time of torch")
    assert figures(conclusions[3])["exponent"] == pytest.approx(3)
    assert said[-1].startswith("The largest difference of torch in fp32 from fp64 is 1.00e-7")


def test_of_nothing_nothing_is_said(made):
    assert made(overrule=lambda case: "crashed").conclusions == ()
