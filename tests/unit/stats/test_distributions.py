"""The distributions against published tables, closed forms and exact sums."""

import math
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.stats.distributions import (
    binomial_at_least,
    regularised_beta,
    student_t_quantile,
)

# To three decimals in the NIST/SEMATECH e-Handbook of Statistical Methods, table 1.3.6.7.2; the
# further digits from numerical integration of the density with 30 digits (mpmath 1.3).
T_TABLE = [
    (1, 0.975, 12.7062047361747),
    (2, 0.975, 4.30265272974946),
    (3, 0.975, 3.18244630528371),
    (4, 0.975, 2.77644510519779),
    (5, 0.975, 2.57058183563632),
    (10, 0.975, 2.22813885198627),
    (30, 0.975, 2.04227245630124),
    (120, 0.975, 1.97993040508244),
    (5, 0.95, 2.01504837333302),
    (10, 0.995, 3.16927267261695),
]


@pytest.mark.parametrize(("dof", "probability", "value"), T_TABLE)
def test_the_t_quantile_is_that_of_the_tables(dof: int, probability: float, value: float) -> None:
    assert student_t_quantile(probability, dof) == pytest.approx(value, abs=1e-11)


@given(st.floats(0.001, 0.999))
def test_the_t_quantile_has_its_closed_forms(p: float) -> None:
    cauchy = math.tan(math.pi * (p - 0.5))
    two = (2 * p - 1) / math.sqrt(2 * p * (1 - p))
    assert student_t_quantile(p, 1) == pytest.approx(cauchy, rel=1e-9, abs=1e-9)
    assert student_t_quantile(p, 2) == pytest.approx(two, rel=1e-9, abs=1e-9)


@given(st.integers(1, 60), st.data(), st.fractions(0, 1, max_denominator=50))
def test_the_binomial_tail_is_the_sum_of_its_terms(
    n: int, data: st.DataObject, p: Fraction
) -> None:
    k = data.draw(st.integers(1, n))
    exact = sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))
    assert binomial_at_least(k, n, float(p)) == pytest.approx(float(exact), abs=1e-12)


@given(st.floats(0, 1), st.floats(0.5, 500), st.floats(0.5, 500))
def test_the_beta_function_mirrors(x: float, a: float, b: float) -> None:
    mirrored = 1 - regularised_beta(1 - x, b, a)
    # 1 - x itself rounds: near an end, where the function is steep, by up to 1e-16 of the whole.
    if 1 - (1 - x) == x:
        assert regularised_beta(x, a, b) == pytest.approx(mirrored, abs=1e-10)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=10), st.floats(0.5, 99), st.floats(0.5, 99))
def test_the_beta_function_never_falls(xs: list[float], a: float, b: float) -> None:
    values = [regularised_beta(x, a, b) for x in sorted(xs)]
    assert all(after >= before - 1e-12 for before, after in pairwise(values))
    assert all(0 <= value <= 1 + 1e-12 for value in values)
