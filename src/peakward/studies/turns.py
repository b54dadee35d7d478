"""Cases that are measured in several turns through a grid, and the ratio of two, turn by turn.

What slows a whole turn, such as the host's other work, cancels in a ratio; what differs from process to
process is in its interval.
"""

from collections.abc import Iterable
from typing import Any, Self, TypeVar

import msgspec

from peakward.records.lever import Pair
from peakward.records.measurement import Interval, Measurement
from peakward.stats.pairs import inverted, ratio_interval
from peakward.stats.summary import interval_of_means
from peakward.studies.cases import with_work
from peakward.studies.engine import P, Row
from peakward.studies.values import groups

T = TypeVar("T", bound="Turned[Any]")


class Turned(Row[P], frozen=True, kw_only=True):
    """A case and its base, turn by turn.

    The measurement of each is the first that ended `ok`, else the first of all.
    """

    turns: tuple[Row[P], ...]

    @property
    def paired(self) -> tuple[Row[P], ...]:
        """The turns in which both were timed."""
        return tuple(each for each in self.turns if each.speed is not None)

    @property
    def both(self) -> tuple[Measurement | None, ...]:
        """The sources of what compares the two."""
        return tuple(made for each in self.paired for made in each.both)

    @property
    def n_repeats(self) -> int:
        """The turns that the interval of a ratio is over."""
        return len(self.paired)

    @property
    def within(self) -> str:
        """The words that follow the interval of a ratio and tell what it is within."""
        n = self.n_repeats
        return f" over {n} turns" if n > 1 else " within one process of each"

    @property
    def time(self) -> Interval | None:
        """The mean over turns, with an interval between turns; None where none ended `ok`."""
        return _mean(each.time for each in self.turns)

    @property
    def base_time(self) -> Interval | None:
        """The base's."""
        return _mean(each.base_time for each in self.turns)

    @property
    def over_base(self) -> Interval | None:
        """The row's time over its base's, over turns, paired in each; of one turn within its processes."""
        if len(self.paired) < 2:
            return self.paired[0].over_base if self.paired else None
        times = [(each.base_time, each.time) for each in self.paired]
        return ratio_interval(
            [
                Pair(process=turn, base_s=base.estimate, candidate_s=own.estimate)
                for turn, (base, own) in enumerate(times)
                if base is not None and own is not None
            ]
        )

    @property
    def speed(self) -> Interval | None:
        """The same as a factor of speed: above 1 is faster."""
        if len(self.paired) < 2:
            return self.paired[0].speed if self.paired else None
        return None if self.over_base is None else inverted(self.over_base)

    @property
    def is_told_apart(self) -> bool:
        """Whether the interval of the ratio holds no 1."""
        return self.speed is not None and not self.speed.low <= 1 <= self.speed.high

    def against(self, other: Self) -> Self:
        """The case, held against another in each turn."""
        both = zip(self.turns, other.turns, strict=True)
        turns = tuple(own.against(base) for own, base in both)
        return msgspec.structs.replace(self, base=other.measurement, turns=turns)


def in_turns(kind: type[T], rows: Iterable[Row[Any]]) -> tuple[T, ...]:
    """The rows of one model's case but for its seed as one, its turns in the order of the rows."""
    return tuple(
        kind(
            point=turns[0].point,
            measurement=_first(each.measurement for each in turns),
            base=_first(each.base for each in turns),
            turns=turns,
        )
        for turns in groups(rows, lambda row: with_work(row.case, seed=0))
    )


def _first(turns: Iterable[Measurement | None]) -> Measurement | None:
    known = [each for each in turns if each is not None]
    return next((each for each in known if each.status == "ok"), known[0] if known else None)


def _mean(turns: Iterable[Interval | None]) -> Interval | None:
    known = [each for each in turns if each is not None]
    if len(known) < 2:
        return known[0] if known else None
    return interval_of_means([each.estimate for each in known])
