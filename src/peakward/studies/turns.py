"""Steps that are timed in several turns through a grid, and the ratio of two, turn by turn.

What slows a whole turn, such as the host's other work, cancels in a ratio; what differs from process to
process is in its interval.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence

import msgspec

from peakward.records.lever import Pair
from peakward.records.measurement import Interval, Measurement
from peakward.stats.pairs import inverted, median_ratio, ratio_interval
from peakward.stats.summary import interval_of_means
from peakward.studies.engine import P, Row
from peakward.studies.readings import mean_s
from peakward.studies.values import groups


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """The mean step time of one way over that of another, of the turns in which both were timed."""

    time: Interval
    """Over turns, paired in each; of one turn within its processes alone."""
    n_turns: int
    sources: tuple[Measurement, ...]

    @property
    def is_told_apart(self) -> bool:
        """Whether the interval holds no 1."""
        return self.time.high < 1 or self.time.low > 1

    @property
    def speed(self) -> Interval:
        """The same as a factor of speed: above 1 is faster."""
        return inverted(self.time)

    @property
    def within(self) -> str:
        """What the interval is of, for behind it."""
        return f" over {self.n_turns} turns" if self.n_turns > 1 else " within one process of each"


class InTurns(Row[P], frozen=True, kw_only=True):
    """A step and its base, turn by turn. Each measurement is the first that ended `ok`, else the first."""

    turns: tuple[Row[P], ...]

    @property
    def mean_s(self) -> Interval | None:
        """The mean step time; None where no turn ended `ok`. The interval is between turns."""
        return _mean_s(each.measurement for each in self.turns)

    @property
    def base_mean_s(self) -> Interval | None:
        """The base's mean step time."""
        return _mean_s(each.base for each in self.turns)

    @property
    def ratio(self) -> Ratio | None:
        """The mean step time over the base's."""
        return over([each.measurement for each in self.turns], [each.base for each in self.turns])

    def over(self, other: "InTurns[P]") -> Ratio | None:
        """The mean step time over that of another way."""
        return over(
            [each.measurement for each in self.turns], [each.measurement for each in other.turns]
        )


def in_turns(rows: Iterable[Row[P]], key: Callable[[Row[P]], Hashable]) -> tuple[InTurns[P], ...]:
    """The rows of one key as one, its turns in the order of the rows."""
    return tuple(
        InTurns(
            point=turns[0].point,
            measurement=_first(each.measurement for each in turns),
            base=_first(each.base for each in turns),
            turns=turns,
        )
        for turns in groups(rows, key)
    )


def over(
    candidates: Sequence[Measurement | None], bases: Sequence[Measurement | None]
) -> Ratio | None:
    """The candidate's mean step time over the base's; None where no turn has both."""
    both = [
        (candidate, base, candidate_s, base_s)
        for candidate, base in zip(candidates, bases, strict=True)
        if candidate is not None
        and base is not None
        and (candidate_s := mean_s(candidate)) is not None
        and (base_s := mean_s(base)) is not None
    ]
    if not both:
        return None
    sources = tuple(each for candidate, base, _, _ in both for each in (base, candidate))
    if len(both) == 1:
        ((_, _, candidate_s, base_s),) = both
        found = _of_one_turn(candidate_s, base_s)
    else:
        found = ratio_interval(
            [
                Pair(process=turn, base_s=base_s.estimate, candidate_s=candidate_s.estimate)
                for turn, (_, _, candidate_s, base_s) in enumerate(both)
            ]
        )
    return Ratio(time=found, n_turns=len(both), sources=sources)


def _of_one_turn(candidate_s: Interval, base_s: Interval) -> Interval:
    """As `median_ratio` has it; of means so unsteady that their interval reaches 0, of no known width."""
    if min(candidate_s.low, base_s.low) <= 0:
        estimate = candidate_s.estimate / base_s.estimate
        return Interval(estimate=estimate, low=0.0, high=math.inf)
    return median_ratio(base_s, candidate_s)


def _first(turns: Iterable[Measurement | None]) -> Measurement | None:
    known = [each for each in turns if each is not None]
    return next((each for each in known if each.status == "ok"), known[0] if known else None)


def _mean_s(turns: Iterable[Measurement | None]) -> Interval | None:
    known = [found for each in turns if (found := mean_s(each)) is not None]
    if len(known) < 2:
        return known[0] if known else None
    return interval_of_means([each.estimate for each in known])
