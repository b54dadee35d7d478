"""The intervals; what they hold of stored measurements is `tests/accuracy`'s."""

from itertools import product

import pytest

from peakward.prediction.time.errors_seen import FACTORS, LEVEL, interval


def test_an_interval_is_the_prediction_times_its_factors():
    found = interval(2.0, "calibrated", "device")
    low, high = FACTORS["calibrated", "device"]
    assert (found.low, found.estimate, found.high, found.level) == (2 * low, 2.0, 2 * high, LEVEL)


@pytest.mark.parametrize("key", list(product(("calibrated", "datasheet"), ("device", "host"))))
def test_the_prediction_lies_in_its_interval(key):
    low, high = FACTORS[key]
    assert 0 < low < 1 < high


@pytest.mark.parametrize(
    ("surer", "less_sure"),
    [
        (("calibrated", "device"), ("datasheet", "device")),
        (("calibrated", "host"), ("datasheet", "host")),
        (("calibrated", "device"), ("calibrated", "host")),
        (("datasheet", "device"), ("datasheet", "host")),
    ],
)
def test_what_is_known_less_well_has_the_wider_one(surer, less_sure):
    assert FACTORS[less_sure][0] < FACTORS[surer][0]
    assert FACTORS[less_sure][1] > FACTORS[surer][1]
