"""What one setting gains over another, case by case, and in a sentence."""

from collections.abc import Sequence
from statistics import geometric_mean

import msgspec

from peakward.prediction.parameters import n_parameters
from peakward.records.case import Case, ModelCase, OperatorCase, Workload
from peakward.records.measurement import Interval, Measurement
from peakward.records.model_shape import ModelShape
from peakward.records.study import Conclusion, Evidence
from peakward.report.cases import label
from peakward.stats.compare import median_ratio
from peakward.studies.cases import place
from peakward.studies.parts import evidence, say
from peakward.studies.readings import distinct, median_s, processes, ratio, time

MOST_NAMED = 6
"""Losing cases named in a sentence."""


class Speedup(msgspec.Struct, frozen=True, kw_only=True):
    """A case measured with and without a setting."""

    base: Measurement | None
    candidate: Measurement | None

    @property
    def factor(self) -> float | None:
        """Step time of the base over the candidate's: above 1 is faster. None where one failed."""
        return ratio(median_s(self.base), median_s(self.candidate))

    @property
    def speed(self) -> Interval | None:
        """The factor, with the interval that those of both medians give it. None where one failed."""
        base, candidate = time(self.base), time(self.candidate)
        return None if base is None or candidate is None else median_ratio(candidate, base)

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
    speed: Interval
    is_slower: bool

    @property
    def factor(self) -> float:
        """The estimate of it."""
        return self.speed.estimate

    @property
    def case(self) -> Case:
        """Where it was found."""
        return self.base.case


def told(speedups: Sequence[Speedup]) -> list[Told]:
    """Those of which both cases ended `ok`."""
    return [
        Told(base=each.base, candidate=each.candidate, speed=speed, is_slower=each.is_slower)
        for each in speedups
        if (speed := each.speed) is not None
        and each.base is not None
        and each.candidate is not None
    ]


def gains(speedups: Sequence[Speedup], candidate: str, base: str) -> tuple[Conclusion, ...]:
    """The range of the gain and its mean by model size; then the cases that lose."""
    known = told(speedups)
    if not known:
        return ()
    spread = _one(known[0], candidate, base) if len(known) == 1 else _range(known, candidate, base)
    return (spread, *losses(speedups, candidate, base))


def losses(speedups: Sequence[Speedup], candidate: str, base: str) -> tuple[Conclusion, ...]:
    """The cases that are slower by more than the intervals of their medians; nothing where none is."""
    known = told(speedups)
    slower = [each for each in known if each.is_slower]
    if not slower:
        return ()
    both = _both(slower)
    named = "; ".join(_where(each) for each in slower[:MOST_NAMED])
    return (
        say(
            "{candidate} is slower than {base} in {n} of {all} cases, by more than the intervals"
            "{processes}: {where}.",
            processes=processes(*both),
            candidate=candidate,
            base=base,
            n=evidence("cases that lose", len(slower), "count", *both),
            all=evidence("cases", len(known), "count", *both),
            where=named if len(slower) <= MOST_NAMED else f"{named}; and others",
        ),
    )


def _one(known: Told, candidate: str, base: str) -> Conclusion:
    return say(
        "{candidate} runs {where} at {factor} the speed of {base} ({low} to {high}{processes}).",
        processes=processes(known.base, known.candidate),
        candidate=candidate,
        base=base,
        where=_where(known),
        **_proof("factor", "low", "high", "speed-up", known),
    )


def _range(known: list[Told], candidate: str, base: str) -> Conclusion:
    least, most = min(known, key=_factor), max(known, key=_factor)
    by_size = _by_size(known)
    means = {f"size{i}": _mean("speed-up of " + name, of) for i, (name, of) in enumerate(by_size)}
    sizes = ", ".join(f"{{size{i}}} for {name}" for i, (name, _) in enumerate(by_size))
    return say(
        "{candidate} runs at {least} the speed of {base} at least ({least_low} to {least_high}; "
        "{where_least}), {most} at most ({most_low} to {most_high}; {where_most}); geometric mean "
        + (sizes or "{mean} over {n} cases")
        + ". Intervals are those{processes}.",
        processes=processes(*_both(known)),
        candidate=candidate,
        base=base,
        **_proof("least", "least_low", "least_high", "least speed-up", least),
        where_least=_where(least),
        **_proof("most", "most_low", "most_high", "largest speed-up", most),
        where_most=_where(most),
        **(means or {"mean": _mean("speed-up", known), "n": _count(known)}),
    )


def _by_size(known: list[Told]) -> list[tuple[str, list[Told]]]:
    """By model, smallest first, over the workloads that every model ran; nothing for one model."""
    by_model: dict[ModelShape, dict[Workload, Told]] = {}
    for each in known:
        if isinstance(each.case, ModelCase):
            by_model.setdefault(each.case.model, {})[each.case.workload] = each
    shared = set.intersection(*(set(of) for of in by_model.values())) if by_model else set()
    if len(by_model) < 2 or not shared:
        return []
    return [
        (shape.name, [each for work, each in by_model[shape].items() if work in shared])
        for shape in sorted(by_model, key=n_parameters)
    ]


def _factor(known: Told) -> float:
    return known.factor


def _where(known: Told) -> str:
    case = known.case
    if isinstance(case, ModelCase):
        return place(case)
    if isinstance(case, OperatorCase):  # Not how attention was computed: the two differ in that.
        shape = f"{case.batch_size} × {case.n_heads} × {case.seq_len} × {case.head_dim}"
        return f"{shape} {case.pass_}, {case.precision}"
    return label(case)


def _proof(name: str, low: str, high: str, quantity: str, known: Told) -> dict[str, Evidence]:
    """The speed-up and the ends of its interval, as fields of a sentence."""
    speed, both = known.speed, (known.base, known.candidate)
    ends = (
        (name, "", speed.estimate),
        (low, ", low end", speed.low),
        (high, ", high end", speed.high),
    )
    return {field: evidence(quantity + end, value, "ratio", *both) for field, end, value in ends}


def _mean(quantity: str, known: list[Told]) -> Evidence:
    return evidence(quantity, geometric_mean(map(_factor, known)), "ratio", *_both(known))


def _count(known: list[Told]) -> Evidence:
    return evidence("cases", len(known), "count", *_both(known))


def _both(known: list[Told]) -> list[Measurement]:
    return [each for one in known for each in (one.base, one.candidate)]
