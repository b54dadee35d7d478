"""Steps that loaders feed, timed in several turns through a grid, and the ratio of two, turn by turn.

What slows a whole turn, such as the host's other work, cancels in a ratio; what differs from process to
process is in its interval.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean, geometric_mean

import msgspec

from peakward.records.case import ModelCase, TextData
from peakward.records.lever import Pair
from peakward.records.measurement import Feeding, Interval, Measurement
from peakward.records.study import Conclusion
from peakward.report.cases import copies, feed
from peakward.stats.pairs import inverted, median_ratio, ratio_interval
from peakward.stats.summary import interval_of_means
from peakward.studies.cases import place, with_work
from peakward.studies.claims import Sentence
from peakward.studies.engine import Point, Row
from peakward.studies.readings import mean_s, ratio
from peakward.studies.values import groups


def way(data: TextData) -> str:
    """To the device: "pageable", or "pinned, non-blocking"."""
    return ", ".join(copies(data)) or "pageable"


def processes(data: TextData) -> str:
    """By their number: "8 loader workers"."""
    return f"{data.n_workers} loader worker{'' if data.n_workers == 1 else 's'}"


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


class Step(Row[Point[ModelCase]], frozen=True, kw_only=True):
    """A step and its base, the same on resident tokens, turn by turn.

    The measurement of each is the first that ended `ok`, else the first of all.
    """

    turns: tuple[Row[Point[ModelCase]], ...]

    @property
    def data(self) -> TextData:
        """How it is fed, of a step that is."""
        data = self.point.case.workload.data
        assert data is not None
        return data

    @property
    def feed(self) -> str:
        """Text, tokenizer and time of tokenising."""
        return feed(self.data)

    @property
    def loader(self) -> tuple[str, int]:
        """What steps share that as many workers feed from the same tokens."""
        return self.feed, self.data.n_workers

    @property
    def place(self) -> str:
        """For a sentence, without the data: "tiny 2 × 128 train_step"."""
        return place(with_work(self.point.case, data=None))

    @property
    def feeding(self) -> Feeding | None:
        """What feeding took in the first turn that ended `ok`."""
        return None if self.measurement is None else self.measurement.feeding

    @property
    def mean_s(self) -> Interval | None:
        """The mean step time; None where no turn ended `ok`. The interval is between turns."""
        return _mean_s(each.measurement for each in self.turns)

    @property
    def step_s(self) -> float | None:
        """The estimate of `mean_s`."""
        return None if self.mean_s is None else self.mean_s.estimate

    @property
    def over_resident(self) -> Ratio | None:
        """The mean step time over that on resident tokens."""
        return _over([each.measurement for each in self.turns], [each.base for each in self.turns])

    def over(self, other: "Step") -> Ratio | None:
        """The mean step time over that of another way to feed it."""
        return _over(
            [each.measurement for each in self.turns], [each.measurement for each in other.turns]
        )

    def mean_of(self, read: Callable[[Feeding], Sequence[float] | None]) -> float | None:
        """What feeding takes of something in a step, on average over all turns."""
        found = [each.measurement.feeding for each in self.turns if each.measurement is not None]
        means = [fmean(times) for each in found if each is not None and (times := read(each))]
        return fmean(means) if means else None

    @property
    def host_waits_s(self) -> float | None:
        """The host's wait in a step."""
        return self.mean_of(lambda each: each.wait_s)

    @property
    def waited_share(self) -> float | None:
        """The share of the step in which the device waits for data: a GPU's idle time, a CPU's wait."""
        waited_s = self.mean_of(lambda each: each.wait_s if each.idle_s is None else each.idle_s)
        return ratio(waited_s, self.step_s)

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens that count, a second of the mean step."""
        return ratio(self.point.case.workload.tokens_per_step, self.step_s)

    @property
    def made_per_s(self) -> float | None:
        """Tokens a second that one process makes: known where the step itself makes its batches."""
        if self.data.n_workers:
            return None
        return ratio(self.point.case.workload.tokens_per_step, self.host_waits_s)

    @property
    def making_share(self) -> float | None:
        """The time in which one process makes a step's tokens, over the step's on resident tokens."""
        resident_s = _mean_s(each.base for each in self.turns)
        if resident_s is None or self.made_per_s is None:
            return None
        return self.point.case.workload.tokens_per_step / self.made_per_s / resident_s.estimate


def in_turns(rows: Iterable[Row[Point[ModelCase]]]) -> tuple[Step, ...]:
    """The rows of one case but for its seed as one step, its turns in the order of the rows."""
    return tuple(
        Step(
            point=turns[0].point,
            measurement=_first(each.measurement for each in turns),
            base=_first(each.base for each in turns),
            turns=turns,
        )
        for turns in groups(rows, lambda row: with_work(row.point.case, seed=0))
    )


def ends_of(told: Sentence, quantity: str, of: Ratio, found: Interval) -> tuple[str, str]:
    """The estimate; and the ends, what they are within, and whether they tell the two apart."""
    estimate = told(quantity, found.estimate, "ratio", *of.sources)
    sure = "" if of.is_told_apart else ": not told apart"
    return estimate, f"{told.range(quantity, found, 'ratio', *of.sources)}{of.within}{sure}"


def against(chosen: Iterable[Step], others: Iterable[Step], **changes: object) -> list[Ratio]:
    """Each step over the one whose data differ in the changes alone."""
    by_case = {each.point.case: each for each in others}
    found = []
    for each in chosen:
        data = msgspec.structs.replace(each.data, **changes)
        base = by_case.get(with_work(each.point.case, data=data))
        found.append(None if base is None else each.over(base))
    return [each for each in found if each is not None]


def compared(
    candidate: str, base: str, pairs: Sequence[Ratio], absent: str = ""
) -> Iterator[Conclusion]:
    """The gain, its range, and in how many cases it is told apart from none."""
    if not pairs:
        return
    told = Sentence()
    if len(pairs) == 1:
        (only,) = pairs
        speed, within = ends_of(told, "speed-up", only, only.speed)
        yield from told.end(
            f"With {candidate} steps run at {speed} the speed that they have with {base} ({within}){absent}."
        )
        return
    behind = [each for pair in pairs for each in pair.sources]
    speeds = [pair.speed.estimate for pair in pairs]
    apart = [pair.speed.estimate > 1 for pair in pairs if pair.is_told_apart]
    mean = told("speed-up, geometric mean", geometric_mean(speeds), "ratio", *behind)
    low = told("least speed-up", min(speeds), "ratio", *behind)
    high = told("largest speed-up", max(speeds), "ratio", *behind)
    yield from told.end(
        f"With {candidate} steps run at {mean} the speed that they have with {base} (by case {low} to "
        f"{high}); of {told.count('cases', len(pairs), behind)} cases "
        f"{told.count('cases that gain', sum(apart), behind)} are faster, "
        f"{told.count('cases that lose', len(apart) - sum(apart), behind)} slower and "
        f"{told.count('cases not told apart', len(pairs) - len(apart), behind)} not told apart, by intervals"
        f"{min(pairs, key=lambda each: each.n_turns).within}{absent}."
    )


def _over(
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
