"""What a `run` study says, found by reading it: where it began, what it kept, where it ended."""

import itertools
import operator

import msgspec

from peakward.records.case import LeverCase
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Interval, Measurement
from peakward.records.prediction import Prediction
from peakward.records.study import Study
from peakward.records.trial import Trial
from peakward.stats.pairs import inverted


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration of the model under study, with all that is known of it."""

    name: str
    case: LeverCase
    measurement: Measurement | None
    """None where the budget ended before it was measured by itself."""
    prediction: Prediction | None

    @property
    def step_s(self) -> float | None:
        """The median step time, where the case ran."""
        summary = self.measurement.summary if self.measurement else None
        return summary.median_s.estimate if summary else None


class Speedup(msgspec.Struct, frozen=True, kw_only=True):
    """How many times faster, and how it is known."""

    estimate: float
    interval: Interval | None = None
    basis: str


class Investigation(msgspec.Struct, frozen=True, kw_only=True):
    """A `run` study, read."""

    baseline: Point
    best: Point | None
    """None where no lever was kept."""
    steps: tuple[Trial, ...]
    """The trials that lead from the baseline to the best, in order: kept, but for those that were
    not settled on their own and stand below one that was."""
    direct: Trial | None
    """A trial of the best against the baseline itself, where one was made and has a ratio."""

    @property
    def points(self) -> tuple[Point, ...]:
        return (self.baseline, self.best) if self.best else (self.baseline,)

    @property
    def speedup(self) -> Speedup | None:
        """Best over baseline, from the strongest comparison that was made."""
        if self.best is None:
            return None
        if self.direct is not None and self.direct.time_ratio is not None:
            interval = inverted(self.direct.time_ratio)
            return Speedup(estimate=interval.estimate, interval=interval, basis="run in pairs")
        if self.baseline.step_s is not None and self.best.step_s is not None:
            estimate = self.baseline.step_s / self.best.step_s
            return Speedup(estimate=estimate, basis="each measured alone")
        product = cumulative_speedups(self.steps)[-1:]
        if product and product[0] is not None:
            return Speedup(estimate=product[0], basis="product of the steps")
        return None

    @property
    def alone(self) -> float | None:
        """The speed-up by the two medians measured alone, where pairs say another one by 2% or more."""
        speedup = self.speedup
        if speedup is None or speedup.interval is None or self.best is None:
            return None
        if self.baseline.step_s is None or self.best.step_s is None:
            return None
        ratio = self.baseline.step_s / self.best.step_s
        inside = speedup.interval.low <= ratio <= speedup.interval.high
        return None if inside or abs(ratio / speedup.estimate - 1) < 0.02 else ratio


def read(study: Study) -> Investigation:
    """The study's baseline, best and the steps between them.

    Raises:
        PeakwardError: it is not an investigation of a model: no measurement, or of something else.
    """
    cases = [each.case for each in study.measurements if isinstance(each.case, LeverCase)]
    if not cases:
        raise PeakwardError(
            f"expected a study of a model with its baseline, got {study.id} ({study.name}) without one: "
            "it was interrupted before the first measurement ended; run it again"
        )
    steps = (
        _steps(study.trials, baseline=cases[0], measured=cases[-1])
        if study.steps is None
        else _by_id(study.trials, study.steps)
    )
    # A study that names its steps may hold larger batches after its best.
    last = steps[-1].candidate if steps else cases[-1 if study.steps is None else 0]
    best = None if last == cases[0] else _point("best", last, study)
    return Investigation(
        baseline=_point("baseline", cases[0], study),
        best=best,
        steps=steps,
        direct=_direct(study.trials, cases[0], last) if best else None,
    )


def cumulative_speedups(steps: tuple[Trial, ...]) -> tuple[float | None, ...]:
    """The product of the steps' speed-ups up to each one; None from a step without a ratio on."""
    ratios = [trial.time_ratio for trial in steps]
    known = list(itertools.takewhile(lambda ratio: ratio is not None, ratios))
    totals = itertools.accumulate((1 / ratio.estimate for ratio in known if ratio), operator.mul)
    return (*totals, *(None,) * (len(steps) - len(known)))


def _by_id(trials: tuple[Trial, ...], ids: tuple[str, ...]) -> tuple[Trial, ...]:
    made = {trial.id: trial for trial in trials}
    return tuple(made[each] for each in ids)


def _steps(
    trials: tuple[Trial, ...], *, baseline: LeverCase, measured: LeverCase
) -> tuple[Trial, ...]:
    """Of a study that does not name its steps, the chain of kept trials that ends in the case measured
    last.

    It is walked from its end, for a lever may have been kept on a base that was then left. Of the
    trials that end in one case, a confirmed one goes before a screened one, and one lever's before
    a comparison of the whole composition with the baseline. Where nothing but the baseline was
    measured, the chain is walked from its beginning.
    """
    kept = [trial for trial in trials if trial.verdict == "kept"]
    if measured == baseline:
        return _forward(kept, baseline)
    chain: list[Trial] = []
    current = measured
    while current != baseline:
        leading = [trial for trial in kept if trial.candidate == current and trial not in chain]
        if not leading:
            break
        step = max(leading, key=lambda t: (t.stage == "confirmed", t.base != baseline))
        chain.insert(0, step)
        current = step.base
    return tuple(chain)


def _forward(kept: list[Trial], baseline: LeverCase) -> tuple[Trial, ...]:
    chain: list[Trial] = []
    current = baseline
    for trial in kept:
        if trial.base == current:
            chain.append(trial)
            current = trial.candidate
    return tuple(chain)


def _direct(trials: tuple[Trial, ...], baseline: LeverCase, best: LeverCase) -> Trial | None:
    made = [
        trial
        for trial in trials
        if trial.base == baseline and trial.candidate == best and trial.time_ratio is not None
    ]
    return max(made, key=lambda trial: trial.stage == "confirmed", default=None)


def _point(name: str, case: LeverCase, study: Study) -> Point:
    return Point(
        name=name,
        case=case,
        measurement=next((each for each in study.measurements if each.case == case), None),
        prediction=next((each for each in study.predictions if each.case == case), None),
    )
