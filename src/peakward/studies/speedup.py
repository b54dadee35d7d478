"""What one setting gains over another, case by case, and in a sentence."""

from collections.abc import Sequence
from statistics import geometric_mean

import msgspec

from peakward.predict.parameters import n_parameters
from peakward.records.case import Case, ModelCase
from peakward.records.measurement import Measurement
from peakward.records.study import Conclusion, Evidence
from peakward.report.cases import label
from peakward.studies.cases import place
from peakward.studies.parts import evidence, say
from peakward.studies.readings import distinct, median_s, ratio, time


class Speedup(msgspec.Struct, frozen=True, kw_only=True):
    """A case measured with and without a setting."""

    base: Measurement | None
    candidate: Measurement | None

    @property
    def factor(self) -> float | None:
        """Step time of the base over the candidate's: above 1 is faster. None where one failed."""
        return ratio(median_s(self.base), median_s(self.candidate))

    @property
    def is_slower(self) -> bool:
        """The candidate takes longer, and the intervals of the medians do not overlap."""
        base, candidate = time(self.base), time(self.candidate)
        if base is None or candidate is None:
            return False
        return distinct(base, candidate) and candidate.estimate > base.estimate


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """A speed-up that is known."""

    base: Measurement
    candidate: Measurement
    factor: float
    is_slower: bool

    @property
    def case(self) -> Case:
        """Where it was found."""
        return self.base.case


def told(speedups: Sequence[Speedup]) -> list[Told]:
    """Those of which both cases ended `ok`."""
    return [
        Told(base=each.base, candidate=each.candidate, factor=factor, is_slower=each.is_slower)
        for each in speedups
        if (factor := each.factor) is not None
        and each.base is not None
        and each.candidate is not None
    ]


def gains(speedups: Sequence[Speedup], candidate: str, base: str) -> tuple[Conclusion, ...]:
    """The range of the gain, where it turns into a loss, and how it goes with the model's size."""
    known = told(speedups)
    if not known:
        return ()
    return (
        _range(known, candidate, base),
        *_losses(known, candidate, base),
        *_trend(known, candidate),
    )


def _range(known: list[Told], candidate: str, base: str) -> Conclusion:
    least, most = min(known, key=_factor), max(known, key=_factor)
    if least is most:
        return say(
            "{candidate} runs {where} at {factor} the speed of {base}.",
            candidate=candidate,
            base=base,
            where=_where(least),
            factor=_proof("speed-up", least),
        )
    everything = [each for one in known for each in (one.base, one.candidate)]
    return say(
        "{candidate} runs at {least} ({where_least}) to {most} ({where_most}) the speed of {base}; "
        "geometric mean {mean} over {n} cases.",
        candidate=candidate,
        base=base,
        least=_proof("least speed-up", least),
        where_least=_where(least),
        most=_proof("largest speed-up", most),
        where_most=_where(most),
        mean=evidence(
            "speed-up, geometric mean", geometric_mean(map(_factor, known)), "ratio", *everything
        ),
        n=evidence("cases", len(known), "count", *everything),
    )


def _losses(known: list[Told], candidate: str, base: str) -> tuple[Conclusion, ...]:
    slower = [each for each in known if each.is_slower]
    if not slower:
        return ()
    both = [each for one in slower for each in (one.base, one.candidate)]
    return (
        say(
            "{candidate} is slower than {base} in {n} of {all} cases, their intervals apart: {where}.",
            candidate=candidate,
            base=base,
            n=evidence("cases that lose", len(slower), "count", *both),
            all=evidence("cases", len(known), "count", *both),
            where=", ".join(_where(each) for each in slower),
        ),
    )


def _trend(known: list[Told], candidate: str) -> tuple[Conclusion, ...]:
    """Gain of the smallest model against the largest's, over the workloads that both ran."""
    by_size: dict[int, dict[object, Told]] = {}
    for each in known:
        if isinstance(each.case, ModelCase):
            of_size = by_size.setdefault(n_parameters(each.case.model), {})
            of_size[each.case.workload] = each
    if len(by_size) < 2:
        return ()
    smallest, largest = by_size[min(by_size)], by_size[max(by_size)]
    shared = [work for work in smallest if work in largest]
    if not shared:
        return ()
    ends = [[of_size[work] for work in shared] for of_size in (smallest, largest)]
    small, large = (geometric_mean(map(_factor, end)) for end in ends)
    names = [end[0].case.model.name for end in ends if isinstance(end[0].case, ModelCase)]
    return (
        say(
            "From {first} to {last} the gain of {candidate} {moves} from {small} to {large}.",
            candidate=candidate,
            first=names[0],
            last=names[1],
            moves="grows" if large > small else "falls",
            small=_mean_proof(f"speed-up of {names[0]}", small, ends[0]),
            large=_mean_proof(f"speed-up of {names[1]}", large, ends[1]),
        ),
    )


def _factor(known: Told) -> float:
    return known.factor


def _where(known: Told) -> str:
    case = known.case
    return place(case) if isinstance(case, ModelCase) else label(case)


def _proof(quantity: str, known: Told) -> Evidence:
    return evidence(quantity, known.factor, "ratio", known.base, known.candidate)


def _mean_proof(quantity: str, value: float, known: list[Told]) -> Evidence:
    measurements = [each for one in known for each in (one.base, one.candidate)]
    return evidence(quantity, value, "ratio", *measurements)
