"""Planted groups are found, and one group is left whole."""

import random
from collections.abc import Callable

import pytest

from peakward.stats.modes import MIN_VALUES, two_modes


def test_two_planted_groups_are_found() -> None:
    draw = random.Random(1)
    values = [draw.gauss(10, 0.1) for _ in range(60)] + [draw.gauss(12, 0.1) for _ in range(40)]
    draw.shuffle(values)
    modes = two_modes(values)
    assert modes is not None
    assert (modes.lower, modes.upper) == pytest.approx((10, 12), abs=0.1)
    assert modes.upper_share == 0.4


def test_two_constants_are_two_groups() -> None:
    modes = two_modes([1.0] * 15 + [2.0] * 5)
    assert modes is not None
    assert (modes.lower, modes.upper, modes.upper_share) == (1.0, 2.0, 0.25)


@pytest.mark.parametrize("n", [20, 60, 200])
@pytest.mark.parametrize(
    "one",
    [
        lambda draw: draw.gauss(10, 1),
        lambda draw: draw.uniform(9, 11),
        lambda draw: draw.lognormvariate(0, 0.3),
        lambda draw: 1 + draw.expovariate(1),
    ],
    ids=["normal", "uniform", "lognormal", "exponential"],
)
def test_one_group_is_rarely_split(one: Callable[[random.Random], float], n: int) -> None:
    draw = random.Random(2)
    split = sum(two_modes([one(draw) for _ in range(n)]) is not None for _ in range(200))
    assert split <= 0.04 * 200


def test_a_few_outliers_are_not_a_group() -> None:
    assert two_modes([1.0 + 0.001 * i for i in range(50)] + [9.0] * 8) is None


def test_constants_are_one_group() -> None:
    assert two_modes([3.0] * 40) is None


def test_few_values_are_not_split() -> None:
    assert two_modes([1.0, 2.0] * (MIN_VALUES // 2 - 1)) is None
