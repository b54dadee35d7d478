"""Running sums: known results of 0.01 a thousand times, and each way against its own arithmetic."""

import pytest
import torch

from peakward.lab.micro import sums
from peakward.lab.micro.work import piece_work
from peakward.records.case import MicroCase


def worked(subject, piece, *sizes):
    case = MicroCase(subject=subject, piece=piece, sizes=sizes, device="cpu")
    return piece_work(getattr(sums, f"build_{subject}")(case))


@pytest.mark.parametrize(
    ("piece", "value"),
    [
        ("fp32", 10.000133514404297),
        ("fp16", 9.953125),
        ("bf16", 4.0),
        ("fp32 of fp16 terms", 10.00213623046875),
        ("fp32 of cast fp16 terms", 10.00213623046875),
    ],
)
def test_a_hundredth_a_thousand_times(piece, value):
    """0.01 is 0.010002 in fp16; bf16's last digit at 4 is 0.03125, of which 0.01 is less than half."""
    found = worked("sum", piece, 1000)
    assert found.value == value
    assert found.difference == pytest.approx(abs(value - 10) / 10)


def test_a_sum_in_fp32_of_narrow_products_is_as_good_as_torchs_own():
    by_torch, one_by_one = (
        worked("dot", piece, 512).difference
        for piece in ("bf16 products, fp32 sum", "bf16 one by one")
    )
    assert by_torch < 2.0**-9 < one_by_one


def test_a_variance_by_the_mean_of_squares_loses_what_the_mean_outweighs():
    n, mean = 512, 100
    good = worked("variance", "fp32 two passes", n, mean).difference
    bad = worked("variance", "fp32 mean of squares", n, mean).difference
    # mean² over the variance is 10^4, and that many times the rounding of fp32 is lost.
    assert good < n * 2.0**-24 < bad < n * 2.0**-24 * mean**2


def test_what_overflows_has_no_difference():
    assert torch.finfo(torch.float16).max < 768 * 100
    found = worked("variance", "fp16 two passes", 768, 100)
    assert (found.value, found.difference) == (None, None)
