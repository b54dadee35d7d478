"""The bootstrap interval of a median, computed exactly instead of by resampling."""

import math
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from statistics import median

from peakward.records.measurement import Interval
from peakward.stats.distributions import binomial_at_least

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
