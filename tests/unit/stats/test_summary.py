"""What is summarised over steps and what over processes."""

import itertools
import math
import random
from collections import defaultdict
from fractions import Fraction
from itertools import pairwise
from statistics import fmean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.records.measurement import Run
from peakward.stats.summary import (
    binomial_at_least,
    mean_interval,
    median_interval,
    regularised_beta,
    student_t_quantile,
    summarise,
)


def run(*steps_s: float) -> Run:
    return Run(warmup_s=(9.0,), steps_s=steps_s)


def test_one_process_is_summarised_over_its_steps() -> None:
    summary = summarise([run(1.0, 2.0, 3.0, 4.0, 10.0)])
    assert summary.median_s == median_interval([1.0, 2.0, 3.0, 4.0, 10.0])
    assert (summary.median_s.estimate, summary.mean_s, summary.min_s, summary.n) == (3, 4, 1, 5)
    assert summary.sd_s == pytest.approx(12.5**0.5)


def test_several_processes_are_summarised_over_their_medians() -> None:
    fast, slow, slower = run(1.0, 1.0, 1.0, 1.0, 7.0), run(3.0, 3.0, 3.0), run(5.0, 5.0, 5.0)
    summary = summarise([fast, slow, slower])
    assert summary.median_s == median_interval([1.0, 3.0, 5.0])
    assert summary.mean_s == pytest.approx(35 / 11)
    assert (summary.min_s, summary.n) == (1.0, 11)


def test_many_steps_of_one_process_do_not_outvote_the_others() -> None:
    assert summarise([run(*[1.0] * 100), run(3.0), run(3.0)]).median_s.estimate == 3.0


def test_a_single_step_has_no_spread() -> None:
    summary = summarise([run(2.0)])
    assert (summary.sd_s, summary.n, summary.median_s.low, summary.median_s.high) == (0, 1, 2, 2)


def test_a_process_without_timed_steps_adds_nothing() -> None:
    assert summarise([run(), run(1.0, 2.0)]) == summarise([run(1.0, 2.0)])


def test_nothing_timed_is_refused() -> None:
    with pytest.raises(ValueError, match="expected at least one timed step"):
        summarise([run()])


times = st.floats(1e-6, 1e3)


def enumerated_limits(values: list[float], level: float) -> tuple[float, float]:
    """Percentiles of the median over every one of the n^n resamples."""
    chances: dict[float, int] = defaultdict(int)
    for sample in itertools.product(values, repeat=len(values)):
        chances[median(sample)] += 1
    total = len(values) ** len(values)

    def first_to_hold(ordered: list[float]) -> float:
        gathered = 0
        for value in ordered:
            gathered += chances[value]
            if gathered / total >= (1 - level) / 2:
                return value
        raise AssertionError

    return first_to_hold(sorted(chances)), first_to_hold(sorted(chances, reverse=True))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("level", [0.5, 0.9, 0.95])
def test_it_is_what_all_resamples_give(n: int, level: float) -> None:
    draw = random.Random(n)
    values = [draw.lognormvariate(0, 1) for _ in range(n)]
    interval = median_interval(values, level=level)
    assert (interval.low, interval.high) == pytest.approx(enumerated_limits(values, level))
    assert (interval.estimate, interval.level) == (median(values), level)


def sampled_limits(
    values: list[float], n_resamples: int, draw: random.Random
) -> tuple[float, float]:
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(n_resamples))
    return medians[int(0.025 * n_resamples)], medians[int(0.975 * n_resamples)]


@pytest.mark.parametrize("n", [30, 31])
def test_sampling_tends_to_it(n: int) -> None:
    draw = random.Random(7)
    values = sorted(draw.lognormvariate(0, 0.1) for _ in range(n))
    interval = median_interval(values)
    low, high = sampled_limits(values, 20_000, draw)
    # Monte Carlo error moves a limit by less than the distance between neighbouring values.
    spacing = max(after - before for before, after in itertools.pairwise(values[8:-8]))
    assert interval.low == pytest.approx(low, abs=spacing)
    assert interval.high == pytest.approx(high, abs=spacing)


def true_coverage(n: int) -> float:
    """Of the interval at odd n, for any continuous distribution.

    Its ends are the l-th and u-th values, which enclose the true median where at least l and fewer
    than u of n fair coins fall below it.
    """
    ranks = median_interval(list(range(1, n + 1)))
    below_low = 1 - binomial_at_least(int(ranks.low), n, 0.5)
    return 1 - below_low - binomial_at_least(int(ranks.high), n, 0.5)


@pytest.mark.parametrize("n", [9, 15, 51])
def test_it_covers_the_true_median_as_often_as_it_should(n: int) -> None:
    draw, n_draws, true_median = random.Random(11), 1000, 1.0
    hits = 0
    for _ in range(n_draws):
        interval = median_interval([draw.lognormvariate(0, 0.5) for _ in range(n)])
        hits += interval.low <= true_median <= interval.high
    coverage = true_coverage(n)
    assert 0.9 < coverage < 0.98
    band = 3.5 * math.sqrt(n_draws * coverage * (1 - coverage))
    assert abs(hits - n_draws * coverage) < band


@given(st.lists(times, min_size=1, max_size=40))
def test_it_encloses_the_median_within_the_values(values: list[float]) -> None:
    interval = median_interval(values)
    assert min(values) <= interval.low <= interval.estimate <= interval.high <= max(values)


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=30))
def test_it_mirrors_and_scales_with_the_values(values: list[int]) -> None:
    interval = median_interval(values)
    mirrored = median_interval([-2 * value for value in values])
    assert (mirrored.low, mirrored.high) == (-2 * interval.high, -2 * interval.low)


@given(st.lists(times, min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_order_does_not_matter(values: list[float], draw: random.Random) -> None:
    shuffled = list(values)
    draw.shuffle(shuffled)
    assert median_interval(shuffled) == median_interval(values)


@pytest.mark.parametrize("n", [1, 2, 7, 200, 20_000])
def test_constants_have_no_width(n: int) -> None:
    interval = median_interval([0.25] * n)
    assert (interval.low, interval.estimate, interval.high) == (0.25, 0.25, 0.25)


@pytest.mark.parametrize("n", [100_000, 100_001])
def test_it_holds_at_large_n(n: int) -> None:
    """The normal limit of the median of a uniform: rank n/2 ± 1.96·sqrt(n)/2."""
    interval = median_interval(range(n))
    half_width = 1.959964 * math.sqrt(n) / 2
    assert interval.estimate - interval.low == pytest.approx(half_width, rel=0.01)
    assert interval.high - interval.estimate == pytest.approx(half_width, rel=0.01)


def test_a_higher_level_is_wider() -> None:
    values = [random.Random(3).random() for _ in range(50)]
    widths = [
        interval.high - interval.low
        for interval in (median_interval(values, level=level) for level in (0.5, 0.9, 0.99))
    ]
    assert widths == sorted(widths)


def test_no_values_are_refused() -> None:
    with pytest.raises(ValueError):
        median_interval([])


def test_of_few_values_there_is_none():
    assert mean_interval([1.0] * 19) is None
    assert mean_interval([1.0] * 20).estimate == 1.0


def test_against_students_t_by_hand():
    # Stretches of two with means 0 to 9: deviation 3.0277, t of 9 degrees 2.2622.
    found = mean_interval([float(i // 2) for i in range(20)])
    assert found.estimate == 4.5
    assert found.high - 4.5 == pytest.approx(2.2622 * 3.02765 / 10**0.5, rel=1e-4)
    assert 4.5 - found.low == pytest.approx(found.high - 4.5)


def test_bursts_within_a_stretch_do_not_widen_it():
    found = mean_interval([1.0, 1.0, 1.0, 5.0] * 10)
    assert (found.low, found.estimate, found.high) == (2.0, 2.0, 2.0)


def test_stretches_of_a_known_cycle_leave_its_own_spread_out():
    cycle = [8.0, 3.0, 6.0, 1.0]
    found = mean_interval(cycle * 3, n_batches=3)
    assert (found.low, found.estimate, found.high) == (4.5, 4.5, 4.5)
    assert mean_interval(cycle * 5).high > 4.5, "ten stretches of two are no whole cycles"


def test_what_is_left_over_counts_in_the_mean():
    values = [9.0, *([1.0] * 20)]
    found = mean_interval(values)
    assert found.estimate == fmean(values)
    assert found.high == found.low


def test_it_covers_the_mean_of_values_that_depend():
    drawn = random.Random(0)
    hits = 0
    for _ in range(300):
        level, values = 0.0, []
        for _ in range(400):
            level = 0.7 * level + drawn.gauss(0, 1)
            values.append(level)
        found = mean_interval(values)
        hits += found.low <= 0 <= found.high
    assert hits / 300 > 0.9


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
