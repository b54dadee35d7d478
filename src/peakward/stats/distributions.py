"""The distributions that the intervals need: incomplete beta, binomial, Student's t."""

import math
from functools import lru_cache

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
