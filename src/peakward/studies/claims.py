"""Sentences whose every number is kept as evidence, and claims that several studies make alike."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import geometric_mean, median
from typing import Any, TypeVar

import msgspec

from peakward.prediction.parameters import n_parameters
from peakward.records.calibration import Calibration
from peakward.records.case import ModelCase
from peakward.records.device import Device
from peakward.records.measurement import Interval, Measurement
from peakward.records.memory import CaseMemory
from peakward.records.model_shape import ModelShape
from peakward.records.plan import ScalingFit
from peakward.records.profile import CaseProfile
from peakward.records.study import Conclusion, Evidence, Unit
from peakward.report.format import format_cell, format_ends, format_estimate, print_alike
from peakward.studies.engine import Row, time_ratio
from peakward.studies.power_law import exponent_interval
from peakward.studies.readings import distinct, processes
from peakward.studies.values import Value, groups

R = TypeVar("R")
AnyRow = Row[Any]
Source = Measurement | CaseProfile | CaseMemory | Calibration | Device | ModelShape | ScalingFit
"""A record or a constant that a number may be computed from."""
MOST_NAMED = 6
"""Losing cases named in a sentence."""


def evidence(quantity: str, value: float, unit: Unit, *sources: Source | None) -> Evidence:
    """A number, and the ids and names of what it was computed from."""
    ids = tuple(dict.fromkeys(_id(each) for each in sources if each is not None))
    return Evidence(quantity=quantity, value=value, unit=unit, from_ids=ids)


def _id(source: Source) -> str:
    match source:
        case Device():
            return source.key
        case ModelShape() | ScalingFit():
            return source.name
        case _:
            return source.id


class Sentence:
    """A sentence in the making, written as an f-string:

        told = Sentence()
        yield from told.end(f"{row.name} takes {told('time', row.median_s, 's', row.measurement)}.")

    Each number is printed in its unit and kept as evidence. One that is not known leaves the sentence out.
    """

    def __init__(self) -> None:
        self._evidence: dict[Evidence, None] = {}
        self._is_known = True

    def __call__(
        self, quantity: str, value: float | None, unit: Unit, *sources: Source | None
    ) -> str:
        """The number as text."""
        if value is None:
            self._is_known = False
            return ""
        self._evidence[evidence(quantity, value, unit, *sources)] = None
        return format_cell(value, unit)

    def of(self, value: Value, row: AnyRow, *sources: Source | None) -> str:
        """A value of a row, computed from its measurement and from other sources."""
        found = value.cell(row)
        assert not isinstance(found, str)
        return self(f"{value.name}, {row.name}", found, value.unit, row.measurement, *sources)

    def estimate(
        self, quantity: str, found: Interval | None, unit: Unit, *sources: Source | None
    ) -> str:
        """The estimate of an interval, with the digits of `range`."""
        text = self(quantity, None if found is None else found.estimate, unit, *sources)
        if found is not None and print_alike(found, unit):
            return format_estimate(found, unit)
        return text

    def range(
        self, quantity: str, found: Interval | None, unit: Unit, *sources: Source | None
    ) -> str:
        """The ends of an interval: "1.02× to 1.05×", with more digits where three do not tell them apart."""
        low, high = (None, None) if found is None else (found.low, found.high)
        first = self(f"{quantity}, low end", low, unit, *sources)
        last = self(f"{quantity}, high end", high, unit, *sources)
        if found is not None and print_alike(found, unit):
            first, last = format_ends(found, unit)
        return f"{first} to {last}"

    def interval(
        self, quantity: str, found: Interval | None, unit: Unit, *sources: Source | None
    ) -> str:
        """An estimate with its ends: "1.03× (1.02× to 1.05×)"."""
        first = self.estimate(quantity, found, unit, *sources)
        return f"{first} ({self.range(quantity, found, unit, *sources)})"

    def by_name(
        self,
        quantity: str,
        found: Iterable[tuple[float, AnyRow]],
        unit: Unit,
        *sources: Source | None,
    ) -> str:
        """A number of each of several rows: "torch 2, compiled 3"."""
        return ", ".join(
            f"{row.name} {self(f'{quantity}, {row.name}', value, unit, row.measurement, *sources)}"
            for value, row in found
        )

    def count(self, quantity: str, n: int, sources: Iterable[Source | None]) -> str:
        """How many there are, each with its source."""
        return self(quantity, n, "count", *sources)

    def end(self, text: str) -> Iterator[Conclusion]:
        """The sentence, if all of its numbers are known."""
        if self._is_known:
            yield Conclusion(text=text, evidence=tuple(self._evidence))


def sources(rows: Iterable[AnyRow]) -> tuple[Measurement | None, ...]:
    """The measurements of rows."""
    return tuple(each.measurement for each in rows)


def pairs(rows: Iterable[AnyRow]) -> tuple[Measurement | None, ...]:
    """The measurements of rows and of their bases."""
    return tuple(made for each in rows for made in (each.measurement, each.base))


def known(rows: Iterable[R], get: Callable[[R], float | None]) -> list[tuple[float, R]]:
    """Each row of which the value is known, behind its value."""
    return [(found, each) for each in rows if (found := get(each)) is not None]


def least(known: Iterable[tuple[float, R]]) -> tuple[float, R]:
    """The first row with the smallest value."""
    return min(known, key=lambda each: each[0])


def most(known: Iterable[tuple[float, R]]) -> tuple[float, R]:
    """The first row with the largest value."""
    return max(known, key=lambda each: each[0])


def extremes(
    subject: str,
    value: Value,
    rows: Iterable[AnyRow],
    *,
    of: str,
    behind: Callable[[AnyRow], Sequence[Source | None]] = lambda row: (row.measurement,),
    where: Callable[[AnyRow], str] = lambda row: row.place,
) -> Iterator[Conclusion]:
    """Where a value is least and most: "A step takes from 1.01× (tiny …) to 2.40× (small …) of …, 1.20× in
    the median of 12 cases"; one figure where both print alike. `behind` gives a row's sources."""
    found = known(rows, value.number)
    if not found:
        return
    told, (low, first), (high, last) = Sentence(), least(found), most(found)
    from_first = told(f"{value.name}, least", low, value.unit, *behind(first))
    if len(found) == 1:
        yield from told.end(f"{subject} {from_first} {of} ({where(first)}).")
        return
    to_last = told(f"{value.name}, most", high, value.unit, *behind(last))
    every = [each for _, row in found for each in behind(row)]
    typical = told(f"{value.name}, median", median(each for each, _ in found), value.unit, *every)
    n = told.count("cases", len(found), every)
    if from_first == to_last:
        yield from told.end(f"{subject} {from_first} {of} in each of {n} cases.")
        return
    yield from told.end(
        f"{subject} from {from_first} ({where(first)}) to {to_last} ({where(last)}) {of}, {typical} in the "
        f"median of {n} cases."
    )


def listed(
    subject: str, values: Iterable[Value], row: Any, *behind: Source | None
) -> Iterator[Conclusion]:
    """The known values of a row by name: "Sampler same: ranks 4, rank 0 reads 1,000"."""
    told = Sentence()
    found = [(value, number) for value in values if (number := value.number(row)) is not None]
    named = [f"{each.name} {told(each.name, n, each.unit, *behind)}" for each, n in found]
    if named:
        yield from told.end(f"{subject}: {', '.join(named)}.")


def changed(
    subject: str, values: Iterable[Value], before: Any, after: Any, *behind: Source | None
) -> Iterator[Conclusion]:
    """How the values known of two rows differ: "From fp32 to bf16: ridge from 17.3 to 262"."""
    told, texts = Sentence(), []
    for each in values:
        old, new = each.number(before), each.number(after)
        if old is not None and new is not None:
            first = told(f"{each.name}, before", old, each.unit, *behind)
            texts.append(f"{each.name} from {first} to {told(each.name, new, each.unit, *behind)}")
    if texts:
        yield from told.end(f"{subject}: {', '.join(texts)}.")


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that do the same work: those that were timed, fastest first, and those that were not."""

    timed: tuple[AnyRow, ...]
    untimed: tuple[AnyRow, ...]

    @property
    def title(self) -> str:
        """The words by which a sentence calls the first row."""
        return "the fastest of those timed" if self.untimed else "the fastest"

    @property
    def absent(self) -> str:
        """The end of the sentence that calls it so: "; not timed: flex (interrupted), sdpa (not run)"."""
        return not_timed(self.untimed)

    @property
    def near(self) -> tuple[AnyRow, ...]:
        """Those whose interval overlaps that of the first."""
        first, *others = self.timed
        assert first.time is not None
        return tuple(each for each in others if each.time and not distinct(first.time, each.time))


def rank(rivals: Iterable[AnyRow]) -> Ranking:
    """Rows that do the same work, in the order of their medians."""
    rows = tuple(rivals)
    return Ranking(
        timed=tuple(
            sorted((each for each in rows if each.time), key=lambda row: row.median_s or 0)
        ),
        untimed=tuple(each for each in rows if each.time is None),
    )


def not_timed(untimed: Iterable[AnyRow]) -> str:
    """A clause that names each once with its reason; empty where all were timed."""
    by_reason: dict[str, dict[str, None]] = {}
    for each in untimed:
        if each.absence is not None:
            by_reason.setdefault(each.absence, {})[each.name] = None
    said = ", ".join(f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())
    return f"; not timed: {said}" if said else ""


def compared(where: str, slow: AnyRow | None, fast: AnyRow | None) -> Iterator[Conclusion]:
    """How many times as long the one takes as the other, with the interval of `longer`, or that their
    intervals do not tell them apart. Nothing where one was not timed."""
    if slow is None or fast is None or slow.time is None or fast.time is None:
        return
    told, both = Sentence(), (slow.measurement, fast.measurement)
    ratio = longer(fast, slow)
    times = told.estimate("time over time", ratio, "ratio", *both)
    text = f"{where}: {slow.name} takes {times} the time of {fast.name}"
    if not distinct(slow.time, fast.time):
        yield from told.end(f"{text}, not told apart by intervals{processes(*both)}.")
        return
    ends = told.range("time over time", ratio, "ratio", *both)
    yield from told.end(f"{text} ({ends}{processes(*both)}).")


def fastest(where: str, rivals: Iterable[AnyRow], base: AnyRow) -> Iterator[Conclusion]:
    """Who of the rivals is the fastest and how much faster than one of them that was timed; rivals that were
    not timed are named, and those whose intervals overlap the fastest's."""
    told, ranking = Sentence(), rank(rivals)
    best = ranking.timed[0]
    if best == base:
        time = told("time", base.median_s, "s", base.measurement)
        yield from told.end(
            f"{where}, nothing that was timed is faster than {base.name} ({time}){ranking.absent}."
        )
        return
    both = (base.measurement, best.measurement)
    speed = told.interval(f"speed over {base.name}", longer(best, base), "ratio", *both)
    # The base is told by its own ratio.
    near = " or ".join(row.name for row in ranking.near if row != base)
    though = f", though not measurably faster than {near}" if near else ""
    yield from told.end(
        f"{where}, {best.name} is {ranking.title}{though}: {speed} the speed of {base.name}, by "
        f"intervals{processes(*both)}{ranking.absent}."
    )


def gains(
    rows: Iterable[AnyRow], candidate: str, base: str, *, absent: str = ""
) -> Iterator[Conclusion]:
    """How much faster the rows are than their bases: the least, the most and the mean by model size; then the
    cases that lose. `absent` ends the first sentence: a clause of `not_timed`."""
    compared = [each for each in rows if each.speed is not None]
    yield from speeds(compared, candidate, base, absent=absent)
    if len(compared) > 1:
        yield from losses(compared, candidate, base)


def speeds(
    rows: Iterable[AnyRow], candidate: str, base: str, *, absent: str = ""
) -> Iterator[Conclusion]:
    """How many times the speed of their bases the rows have: the least, the most and the mean; and how many
    are faster or slower by more than the intervals."""
    found = [(speed, each) for each in rows if (speed := each.speed) is not None]
    if not found:
        return
    told, compared = Sentence(), [each for _, each in found]

    def end(quantity: str, speed: Interval, row: AnyRow) -> tuple[str, str]:
        ends = told.range(quantity, speed, "ratio", *row.both)
        return told.estimate(quantity, speed, "ratio", *row.both), ends

    if len(found) == 1:
        ((speed, row),) = found
        factor, ends = end("speed-up", speed, row)
        yield from told.end(
            f"{candidate} runs {row.place} at {factor} the speed of {base} "
            f"({ends}{row.sure}){absent}."
        )
        return
    (least_speed, slowest), (most_speed, fastest) = (
        pick(found, key=lambda each: each[0].estimate) for pick in (min, max)
    )
    low, low_ends = end("least speed-up", least_speed, slowest)
    high, high_ends = end("largest speed-up", most_speed, fastest)
    apart = [speed.estimate > 1 for speed, row in found if row.is_told_apart]
    n, faster, slower, near = (
        told.count(f"cases{which}", count, _both(compared))
        for which, count in (
            ("", len(found)),
            (" that gain", sum(apart)),
            (" that lose", len(apart) - sum(apart)),
            (" not told apart", len(found) - len(apart)),
        )
    )
    yield from told.end(
        f"{candidate} runs at {low} the speed of {base} at least ({low_ends}; {slowest.place}), {high} at "
        f"most ({high_ends}; {fastest.place}); geometric mean {_means(told, found)}. Of {n} cases {faster} "
        f"are faster, {slower} slower and {near} not told apart, by intervals{_within(compared)}{absent}."
    )


def _means(told: Sentence, found: Sequence[tuple[Interval, AnyRow]]) -> str:
    """The geometric mean of the speeds; by model, where several ran the same workloads."""

    def mean(quantity: str, of: Sequence[tuple[Interval, AnyRow]]) -> str:
        factor = geometric_mean(speed.estimate for speed, _ in of)
        return told(quantity, factor, "ratio", *_both(row for _, row in of))

    by_size = _by_size(found)
    named = (f"{mean(f'speed-up of {name}', of)} for {name}" for name, of in by_size)
    return ", ".join(named) if by_size else mean("speed-up", found)


def losses(rows: Iterable[AnyRow], candidate: str, base: str) -> Iterator[Conclusion]:
    """The cases that are slower than their bases by more than the intervals; nothing where none is."""
    compared = [each for each in rows if each.speed is not None]
    slower = [each for each in compared if each.is_slower]
    if not slower:
        return
    told, both = Sentence(), _both(slower)
    named = "; ".join(each.place for each in slower[:MOST_NAMED])
    named += "" if len(slower) <= MOST_NAMED else "; and others"
    yield from told.end(
        f"{candidate} is slower than {base} in {told.count('cases that lose', len(slower), both)} of "
        f"{told.count('cases', len(compared), both)} cases, by more than the intervals{_within(slower)}: "
        f"{named}."
    )


def _both(rows: Iterable[AnyRow]) -> list[Measurement | None]:
    return [made for each in rows for made in each.both]


def _within(rows: Iterable[AnyRow]) -> str:
    """Returns the words for what the intervals of all rows are within: those of the row with the fewest
    repeats."""
    return min(rows, key=lambda row: row.n_repeats).within


def _by_size(
    compared: Sequence[tuple[Interval, AnyRow]],
) -> list[tuple[str, Sequence[tuple[Interval, AnyRow]]]]:
    """By model, smallest first, over the workloads that every model ran; nothing for one model."""
    of_models = [each for each in compared if isinstance(each[1].point.case, ModelCase)]
    by_model = groups(of_models, lambda each: each[1].point.case.model)
    works = [{row.point.case.workload for _, row in of} for of in by_model]
    shared = set.intersection(*works) if len(works) > 1 else set()
    if not shared:
        return []
    by_model = tuple(sorted(by_model, key=lambda of: n_parameters(of[0][1].point.case.model)))
    return [
        (
            of[0][1].point.case.model.name,
            [each for each in of if each[1].point.case.workload in shared],
        )
        for of in by_model
    ]


def growth(
    rows: Iterable[AnyRow], x: Callable[[AnyRow], int]
) -> tuple[Interval, list[tuple[int, AnyRow]]] | None:
    """The exponent of the rows' times in x and the timed rows behind it; None for fewer than three x."""
    timed = [(x(each), each) for each in rows if each.time is not None]
    power = exponent_interval([at for at, _ in timed], [row.time for _, row in timed if row.time])
    return None if power is None else (power, timed)


def grows(what: str, rows: Iterable[AnyRow], x: Value) -> Iterator[Conclusion]:
    """How the rows' times grow with x, with the interval that those of the times give the exponent."""
    found = growth(rows, lambda row: _number(x, row))
    if found is None:
        return
    power, timed = found
    (low, first), (high, last) = timed[0], timed[-1]
    told, behind = Sentence(), sources(row for _, row in timed)
    yield from told.end(
        f"{what} grows with {x.name} to the power of {told.interval('exponent', power, 'count', *behind)} "
        "by the intervals of the times, from "
        f"{told('time at the least', first.median_s, 's', first.measurement)} at "
        f"{told(f'least {x.name}', low, x.unit, first.measurement)} to "
        f"{told('time at the largest', last.median_s, 's', last.measurement)} at "
        f"{told(f'largest {x.name}', high, x.unit, last.measurement)}."
    )


def _number(x: Value, row: AnyRow) -> int:
    found = x.get(row)
    assert isinstance(found, int)
    return found


def longer(first: AnyRow, second: AnyRow) -> Interval | None:
    """The second's time over the first's, with the interval that tables show too.

    `median_ratio` computes it: errors of two medians that were measured apart are independent, so they add
    in squares. Dividing the ends would add the errors themselves, and gives an interval that is too wide.
    """
    return time_ratio(first.time, second.time)
