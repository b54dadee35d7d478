"""Products of all groups in one kernel on a device of round figures, by hand."""

import pytest

from peakward.prediction.time.grouped_products import Groups, compute_s, groups
from peakward.prediction.time.operator_time import cost
from peakward.prediction.time.setting import of_case

from .round_device import TB, US, case, device, operator, tensor

SMALL_S = 2 * 64 * 128 * 512 / 1e12
LARGE_S = 2 * 128 * 256 * 512 / 1e12
"""Of one tile over k of 512 at 1 TFLOP/s a multiprocessor, of which there are 100."""


def grouped(a, b, made, n_groups, flops=1):
    ends = tensor(n_groups, dtype="int32")
    a, b, made = (tensor(*each, dtype="bfloat16") for each in (a, b, made))
    return operator("_grouped_mm", [a, b, ends], [made], flops=flops)


def seconds(each, capability=(9, 0)):
    return compute_s(each, device().products["bf16"], capability)


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        (((800, 64), (8, 64, 32), (800, 32)), Groups(8, 100, 32, 64)),
        (((801, 64), (8, 64, 32), (801, 32)), Groups(8, 101, 32, 64)),
        (((3, 64), (8, 64, 32), (3, 32)), Groups(3, 1, 32, 64)),
        (((64, 800), (800, 32), (8, 64, 32)), Groups(8, 64, 32, 100)),
        (((8, 32, 64), (64, 800), (32, 800)), Groups(8, 32, 100, 64)),
        (((8, 100, 64), (8, 64, 32), (8, 100, 32)), Groups(8, 100, 32, 64)),
    ],
)
def test_groups_are_cut_evenly_from_what_has_no_dimension_of_them(shapes, expected):
    assert groups(grouped(*shapes, n_groups=8)) == expected


def test_tiles_of_all_groups_fill_waves_together():
    assert seconds(Groups(5, 1280, 512, 512)) == pytest.approx(LARGE_S)  # 5 × 10 × 2 tiles
    assert seconds(Groups(5, 1280, 513, 512)) == pytest.approx(2 * LARGE_S)


def test_tiles_run_in_pairs_along_the_rows():
    """Of 129 rows two tiles, of 257 four."""
    assert seconds(Groups(25, 129, 512, 512)) == pytest.approx(LARGE_S)
    assert seconds(Groups(25, 257, 512, 512)) == pytest.approx(2 * LARGE_S)


def test_few_rows_or_columns_have_small_tiles_and_on_blackwell_all():
    assert seconds(Groups(25, 128, 256, 512)) == pytest.approx(SMALL_S)
    assert seconds(Groups(5, 1280, 128, 512)) == pytest.approx(SMALL_S)
    assert seconds(Groups(5, 640, 256, 512), (10, 0)) == pytest.approx(SMALL_S)


def test_a_call_is_two_launches_and_the_longer_of_tiles_and_bytes():
    def found(rows):
        made = grouped((rows, 512), (8, 512, 512), (rows, 512), 8)
        return cost(made, of_case(case()), device()), made

    many, _ = found(8 * 2560)  # 8 × 20 × 2 tiles: four waves.
    assert many.device_s == pytest.approx(4 * LARGE_S + (2 + 3) * US)
    assert (many.n_launches, many.bound) == (2.0, "compute")
    thin = grouped((8, 512), (8, 512, 51_200), (8, 51_200), 8)
    thin_cost = cost(thin, of_case(case()), device())
    moved_s = (thin.bytes_read + thin.bytes_written) / (10 * TB)
    assert thin_cost.device_s == pytest.approx(max(moved_s, 64 * SMALL_S) + 5 * US, rel=0.3)


def test_what_has_no_kernel_or_no_known_rate_has_no_time():
    made = grouped((800, 64), (8, 64, 32), (800, 32), 8)
    single = operator("_grouped_mm", [tensor(800, 64), tensor(8, 64, 32)], made.outputs, flops=1)
    for each, changes in (
        (made, {"products": {}}),
        (made, {"compute_capability": (8, 0)}),
        (single, {}),
    ):
        assert cost(each, of_case(case()), device(**changes)).device_s is None
