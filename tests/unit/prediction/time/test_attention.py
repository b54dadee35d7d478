"""The rate of fused attention, through two points by hand."""

import pytest

from peakward.prediction.time.attention import AttentionModel, fitted
from peakward.records.calibration import AttentionRate


def rate(seq_len, flops_per_s, compute_type="bf16", pass_="forward"):
    return AttentionRate(
        compute_type=compute_type,
        pass_=pass_,
        batch_size=4,
        n_heads=16,
        seq_len=seq_len,
        head_dim=64,
        flops_per_s=flops_per_s,
    )


TWO = [rate(4000, 2e12), rate(1000, 1e12)]
"""1 ps a FLOP at 1000, 0.5 at 4000: 1/3 at endless rows and 2/3 ns over the length."""


def test_it_goes_through_both_lengths_and_on():
    model = fitted(TWO, "bf16", "forward")
    assert model.time_s(6e12, 1000) == pytest.approx(6.0)
    assert model.time_s(6e12, 4000) == pytest.approx(3.0)
    assert model.time_s(6e12, 10**15) == pytest.approx(2.0)
    assert model.time_s(6e12, 500) == pytest.approx(10.0)


def test_lengths_between_do_not_bend_it():
    assert fitted([*TWO, rate(2000, 1e9)], "bf16", "forward") == fitted(TWO, "bf16", "forward")


@pytest.mark.parametrize(
    "rates",
    [
        [],
        [rate(1000, 1e12)],
        [rate(1000, 1e12), rate(1000, 2e12)],
        [rate(1000, 1e12), rate(4000, 2e12, "fp16")],
        [rate(1000, 1e12), rate(4000, 2e12, pass_="backward")],
    ],
)
def test_one_length_of_a_type_and_pass_tells_nothing(rates):
    assert fitted(rates, "bf16", "forward") is None


def test_where_short_rows_are_no_slower_the_length_does_not_matter():
    assert fitted([rate(1000, 2e12), rate(4000, 1e12)], "bf16", "forward") == AttentionModel(
        1e-12, 0.0
    )
