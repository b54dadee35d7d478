"""Summaries of step times: statistics that tables show, intervals of a median and of a mean.

The interval of a median is that of the bootstrap, computed exactly instead of by resampling. The interval of
a mean holds for a series whose values depend on one another.
"""

import math
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from statistics import fmean, median, stdev

from peakward.records.measurement import Interval, Measurement, Run, Summary


def summarise(runs: Sequence[Run]) -> Summary:
    """Summarise the timed steps of one or more processes. A run without timed steps adds nothing.

    For one process, the median and its interval are over its steps. For several they are over the medians of
    the processes: steps of one process share its memory layout and its clocks, so pooled steps would give too
    narrow an interval. Mean, standard deviation, minimum and count are over all steps.

    Raises:
        ValueError: not a single timed step.
    """
    processes = [run.steps_s for run in runs if run.steps_s]
    if not processes:
        raise ValueError("expected at least one timed step, got none")
    steps = [step for process in processes for step in process]
    headline = processes[0] if len(processes) == 1 else [median(process) for process in processes]
    return Summary(
        median_s=median_interval(headline),
        mean_s=fmean(steps),
        sd_s=stdev(steps) if len(steps) > 1 else 0.0,
        min_s=min(steps),
        n=len(steps),
    )


_REACH_SD = 8
"""The range of a resampled median's rank, in standard deviations. Only 1e-15 of the probability lies
beyond."""
_NEGLIGIBLE = 1e-12
"""Outcomes rarer than this are left out; at 200 values they add up to less than 1e-9."""
_Atom = tuple[int, int, float]


def _ranks(n: int) -> range:
    reach = math.ceil(_REACH_SD * math.sqrt(n) / 2)
    return range(max(1, n // 2 - reach), min(n, n // 2 + reach + 1) + 1)


def _atoms_of_odd(n: int) -> Iterator[_Atom]:
    """The middle draw is at most the k-th value where at least half the draws are."""
    middle = (n + 1) // 2
    below = 0.0
    for k in _ranks(n):
        up_to = binomial_at_least(middle, n, k / n)
        yield k, k, up_to - below
        below = up_to


def _atoms_of_even(n: int) -> Iterator[_Atom]:
    """The middle two draws are the i-th and the j-th value.

    For i < j: half the draws are at most i with i among them, and half at least j with j among them.
    For i = j: the lower middle draw is i, less the cases where the upper one is above it.
    Logarithms, because (k/n)^(n/2) leaves the range of floats at large n.
    """
    half = n // 2
    log_ways = math.lgamma(n + 1) - 2 * math.lgamma(half + 1)

    @cache
    def log_reached(k: int) -> float:
        """The logarithm of P(half the draws are at most k and k is among them)."""
        missed = math.expm1(half * math.log((k - 1) / k)) if k > 1 else -1.0
        return half * math.log(k / n) + math.log(-missed)

    below = 0.0
    for i in _ranks(n):
        up_to = binomial_at_least(half, n, i / n)
        log_split = log_ways + log_reached(i)
        apart = math.exp(log_split + half * math.log((n - i) / n)) if i < n else 0.0
        yield i, i, up_to - below - apart
        below = up_to
        for j in range(i + 1, n + 1):
            chance = math.exp(log_split + log_reached(n - j + 1))
            if chance < _NEGLIGIBLE:
                break
            yield i, j, chance


@lru_cache(maxsize=16)
def _atoms(n: int) -> tuple[_Atom, ...]:
    """Triples (i, j, probability): the median of n draws from n sorted values is the mean of the i-th and
    j-th."""
    atoms = _atoms_of_odd(n) if n % 2 else _atoms_of_even(n)
    return tuple(atom for atom in atoms if atom[2] >= _NEGLIGIBLE)


def _quantile(outcomes: Sequence[tuple[float, float]], probability: float) -> float:
    """The first value, in the order given, at which the summed probability reaches `probability`."""
    gathered = 0.0
    for value, chance in outcomes:
        gathered += chance
        if gathered >= probability:
            return value
    return outcomes[-1][0]


def median_interval(values: Sequence[float], *, level: float = 0.95) -> Interval:
    """The median of at least one finite value, with its bootstrap percentile interval.

    The bootstrap distribution of a median has a closed form over pairs of order statistics, so it
    is computed and not sampled: no seed, no Monte Carlo error (Efron 1979, "Bootstrap methods:
    another look at the jackknife", section 3, for odd n; Maritz and Jarrett 1978, "A note on
    estimating the variance of the sample median", for the distribution that even n extends).
    The interval cannot reach beyond the values: of 5 it covers the true median of a continuous
    distribution with at most 94%, of 2 with 50%, whatever the level.
    """
    ordered = sorted(values)
    outcomes = sorted(
        ((ordered[i - 1] + ordered[j - 1]) / 2, chance) for i, j, chance in _atoms(len(ordered))
    )
    tail = (1 - level) / 2
    return Interval(
        estimate=median(ordered),
        low=_quantile(outcomes, tail),
        high=_quantile(outcomes[::-1], tail),
        level=level,
    )


N_BATCHES = 10
"""Enough batches that Student's t widens the interval little (2.26 against 1.96 deviations)."""


N_FED_BATCHES = 4
"""Batches of a short screening, of some ten steps."""


def mean_interval(
    values: Sequence[float], *, n_batches: int = N_BATCHES, level: float = 0.95
) -> Interval | None:
    """The mean of a steady series in its order, with an interval by batch means.

    The series is cut into `n_batches` stretches of equal length. Their means depend on one another far less
    than neighbouring values do, and Student's t applies to them (Law & Kelton 2000, "Simulation modeling and
    analysis", 9.5.3). The result is None where there are fewer than two values a batch.

    Values left over by the division are the first ones. They count in the mean, but not in the interval's
    width.
    """
    length = len(values) // n_batches
    if length < 2:
        return None
    kept = values[len(values) - n_batches * length :]
    means = [fmean(kept[i : i + length]) for i in range(0, len(kept), length)]
    mean, reach = fmean(values), _reach(means, level)
    return Interval(estimate=mean, low=mean - reach, high=mean + reach, level=level)


def typical_s(measurement: Measurement) -> Interval | None:
    """The time of a step: the median; the mean where a user's loader feeds it, because workers hand over
    batches in bursts and a median would leave out the waits. None where the case did not run.
    """
    summary = measurement.summary
    if summary is None or measurement.loader is None:
        return None if summary is None else summary.median_s
    steps_s = measurement.runs[0].steps_s
    found = mean_interval(steps_s, n_batches=N_FED_BATCHES) or mean_interval(steps_s, n_batches=2)
    return found or Interval(estimate=summary.mean_s, low=min(steps_s), high=max(steps_s))


def interval_of_means(means: Sequence[float], *, level: float = 0.95) -> Interval:
    """The mean of at least two means of whole measurements, by Student's t."""
    mean, reach = fmean(means), _reach(means, level)
    return Interval(estimate=mean, low=mean - reach, high=mean + reach, level=level)


def _reach(means: Sequence[float], level: float) -> float:
    n = len(means)
    return student_t_quantile((1 + level) / 2, n - 1) * stdev(means) / math.sqrt(n)


_TINY = 1e-300
_CONVERGED = 1e-15


def _beta_fraction(x: float, a: float, b: float) -> float:
    """1 + d1/(1 + d2/(1 + …)), the denominator of DLMF 8.17.22, by Lentz's method after Thompson.

    Converges in O(sqrt(max(a, b))) terms where x <= (a + 1) / (a + b + 2).
    """
    value, c, d, term = 1.0, 1.0, 0.0, 0
    while True:
        term += 1
        m, odd = divmod(term, 2)
        if odd:
            numerator = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            numerator = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / ((1 + numerator * d) or _TINY)
        c = (1 + numerator / c) or _TINY
        value *= c * d
        if abs(c * d - 1) < _CONVERGED:
            return value


def _beta_left(x: float, a: float, b: float) -> float:
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    log_front += a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / (a * _beta_fraction(x, a, b))


def regularised_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b), the regularised incomplete beta function, for 0 <= x <= 1 and a, b > 0."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x <= (a + 1) / (a + b + 2):
        return _beta_left(x, a, b)
    return 1 - _beta_left(1 - x, b, a)


def binomial_at_least(k: int, n: int, probability: float) -> float:
    """P(at least `k` of `n` independent trials succeed), for 1 <= k <= n (DLMF 8.17.5)."""
    return regularised_beta(probability, k, n - k + 1)


def _student_t_above(t: float, dof: int) -> float:
    return regularised_beta(dof / (dof + t * t), dof / 2, 0.5) / 2


@lru_cache(maxsize=64)
def student_t_quantile(probability: float, dof: int) -> float:
    """The value that Student's t with `dof` degrees of freedom stays below with `probability`.

    For 0 < probability < 1 and dof >= 1; by bisection, to about 1e-13 of its size.
    """
    if probability < 0.5:
        return -student_t_quantile(1 - probability, dof)
    low, high = 0.0, 1.0
    while _student_t_above(high, dof) > 1 - probability:
        low, high = high, 2 * high
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        if _student_t_above(middle, dof) > 1 - probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def paired_difference(mine: Sequence[float], others: Sequence[float]) -> Interval | None:
    """The mean of mine − others with its t-interval; None with fewer than two pairs."""
    each = [one - other for one, other in zip(mine, others, strict=True)]
    if len(each) < 2:
        return None
    half = student_t_quantile(0.975, len(each) - 1) * stdev(each) / math.sqrt(len(each))
    centre = fmean(each)
    return Interval(estimate=centre, low=centre - half, high=centre + half)
