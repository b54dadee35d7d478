"""The story of a `run` study: its baseline, the kept levers, its best configuration and efficiency."""

import itertools
import operator

import msgspec

from peakward.records.case import LeverCase
from peakward.records.errors import PeakwardError
from peakward.records.lever import Trial
from peakward.records.linear_layers import LinearChoice
from peakward.records.measurement import Interval, Measurement
from peakward.records.prediction import Prediction
from peakward.records.study import Study
from peakward.report.format import format_cell
from peakward.stats.pairs import inverted
from peakward.stats.summary import typical_s

VISIBLE = 0.01
"""Two ratios that differ by so much print differently in three figures, whatever their first digit is."""


class KnownConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration of the studied model, with all that is known of it."""

    name: str
    case: LeverCase
    measurement: Measurement | None
    """None where the budget ended before it was measured alone."""
    prediction: Prediction | None

    @property
    def step_s(self) -> float | None:
        """The time of a step (`stats.summary.typical_s`); None where the case did not run."""
        found = None if self.measurement is None else typical_s(self.measurement)
        return None if found is None else found.estimate

    @property
    def linear(self) -> LinearChoice | None:
        """The layers of a module in fp8; None where its measurement names none."""
        found = None if self.measurement is None else self.measurement.linear
        return found if found is not None and found.taken else None


class Speedup(msgspec.Struct, frozen=True, kw_only=True):
    """A speed-up, and the comparison that it comes from."""

    estimate: float
    interval: Interval | None = None
    basis: str


class RunParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a `run` study."""

    baseline: KnownConfiguration
    best: KnownConfiguration | None
    """None where no lever was kept."""
    steps: tuple[Trial, ...]
    """The trials that lead from the baseline to the best, in order. All are kept, except those that were
    undecided alone and lie below a kept one."""
    direct: Trial | None
    """A trial of the best against the baseline itself; None where none has a ratio."""

    @property
    def points(self) -> tuple[KnownConfiguration, ...]:
        return (self.baseline, self.best) if self.best else (self.baseline,)

    @property
    def speedup(self) -> Speedup | None:
        """The speed-up of the best over the baseline, from the strongest comparison."""
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
        """The speed-up by the two separately measured medians, where it visibly differs from the pairs'."""
        speedup = self.speedup
        if speedup is None or speedup.interval is None or self.best is None:
            return None
        if self.baseline.step_s is None or self.best.step_s is None:
            return None
        ratio = self.baseline.step_s / self.best.step_s
        return None if abs(ratio / speedup.estimate - 1) < VISIBLE else ratio


def read(study: Study) -> RunParts:
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
    # A study that names its steps may have measured larger batches after its best.
    last = steps[-1].candidate if steps else cases[-1 if study.steps is None else 0]
    best = None if last == cases[0] else _point("best", last, study)
    return RunParts(
        baseline=_point("baseline", cases[0], study),
        best=best,
        steps=steps,
        direct=_direct(study.trials, cases[0], last) if best else None,
    )


def cumulative_speedups(steps: tuple[Trial, ...]) -> tuple[float | None, ...]:
    """The product of the speed-ups up to each step. It is None from the first step without a ratio on."""
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
    """The steps of a study that does not name them: the chain of kept trials that ends in the last measured
    case.

    The chain is walked from its end, because a lever may have been kept on a base that was then left. Among
    trials that end in one case, a confirmed one goes before a screened one, and one lever's goes before a
    comparison of the whole composition with the baseline. Where only the baseline was measured, the chain is
    walked from its beginning.
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


def _point(name: str, case: LeverCase, study: Study) -> KnownConfiguration:
    return KnownConfiguration(
        name=name,
        case=case,
        measurement=next((each for each in study.measurements if each.case == case), None),
        prediction=next((each for each in study.predictions if each.case == case), None),
    )


class Efficiency(msgspec.Struct, frozen=True, kw_only=True):
    """Rates and shares of one configuration. A field is None where an input of it is unknown."""

    step_s: float | None
    tokens_per_s: float | None
    flops_per_s: float | None
    """Model FLOPs over the median step time."""
    mfu: float | None
    """`flops_per_s` over the datasheet's dense peak of the compute type."""
    ceiling_share: float | None
    """`flops_per_s` over the matmul rate measured on this device in that type."""
    floor_share: float | None
    """The floor over the median step time. 1: the step could not be faster."""


def efficiency(point: KnownConfiguration) -> Efficiency:
    """The efficiency of a measured configuration.

    Raises:
        PeakwardError: an MFU above 1, which no device can have: the arithmetic is wrong somewhere.
    """
    step_s, prediction = point.step_s, point.prediction
    rate = quotient(model_flops(prediction), step_s)
    mfu = quotient(rate, prediction.peak_flops_per_s) if prediction else None
    if mfu is not None and mfu > 1:
        raise PeakwardError(_impossible(point, mfu), exit_code=1)
    return Efficiency(
        step_s=step_s,
        tokens_per_s=quotient(point.case.tokens_per_step, step_s),
        flops_per_s=rate,
        mfu=mfu,
        ceiling_share=quotient(rate, measured_matmul_rate(prediction)),
        floor_share=quotient(prediction.floor_s, step_s) if prediction else None,
    )


def model_flops(prediction: Prediction | None) -> float | None:
    """Model FLOPs of one step."""
    return sum(phase.flops for phase in prediction.phases) if prediction else None


def compulsory_bytes(prediction: Prediction) -> float:
    """Bytes that one step must move."""
    return sum(phase.bytes for phase in prediction.phases)


def measured_matmul_rate(prediction: Prediction | None) -> float | None:
    """The measured matmul rate behind the ceiling share; None for a datasheet's rate."""
    if prediction is None or prediction.source == "datasheet":
        return None
    return prediction.matmul_flops_per_s


def quotient(part: float | None, whole: float | None) -> float | None:
    """`part` over `whole`; None where one of them is unknown."""
    return None if part is None or not whole else part / whole


def _impossible(point: KnownConfiguration, mfu: float) -> str:
    peak = point.prediction.peak_flops_per_s if point.prediction else None
    return (
        f"expected an MFU of at most 100%, got {mfu:.2%} of "
        f"{format_cell(peak, 'flops_per_s')} for {point.name}: the FLOPs, the time or the device's "
        "row in the catalogue is wrong; please report it with the study's record"
    )
