"""The plots of a run: step times by composition step, the roofline, and the Pareto front with its table.

A configuration is on the front if no other beats it in time, memory, energy and numerics.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from peakward.records.case import LeverCase
from peakward.records.case_key import same_work
from peakward.records.lever import NumericsClass, Trial
from peakward.records.measurement import Interval
from peakward.records.prediction import Prediction
from peakward.records.study import Column, Plot, Point, Series, Study, Table
from peakward.report.cases import changes
from peakward.report.columns import spread_column, without_empty
from peakward.report.document import Section, TableBlock
from peakward.report.format import format_spread
from peakward.report.plots import FLOOR
from peakward.report.run.investigation import KnownConfiguration as Configuration
from peakward.report.run.investigation import (
    RunParts,
    compulsory_bytes,
    efficiency,
    model_flops,
)
from peakward.stats.pairs import inverted
from peakward.stats.summary import typical_s


def step_times(read: RunParts) -> Plot | None:
    """A bar each for the baseline, the composition's steps and the best, with floors marked.

    Baseline and best show their own measurements. A step between them shows its trial's ratio and interval,
    times its base's median in the same pairs.
    """
    bars = [_measured(0, read.baseline)]
    inner = read.steps[:-1] if read.best and read.best.step_s is not None else read.steps
    bars += [_paired(x, trial) for x, trial in enumerate(inner, start=1)]
    if read.best is not None and len(inner) < max(1, len(read.steps)):
        bars.append(_measured(len(bars), read.best))
    drawn = tuple(bar for bar in bars if bar is not None)
    if not drawn:
        return None
    floors = tuple(
        Point(x=bar.x, y=point.prediction.floor_s, label=bar.label)
        for point in read.points
        for bar in drawn
        if bar.label == point.name and point.prediction and point.prediction.floor_s is not None
    )
    series = [Series(name="measured", points=drawn)]
    if floors:
        series.append(Series(name=FLOOR, points=floors))
    return Plot(
        title="Step time",
        kind="bars",
        x_label="configuration",
        y_label="step time",
        x_unit="text",
        y_unit="s",
        series=tuple(series),
    )


def roofline(read: RunParts) -> Plot | None:
    """Baseline and best as roofline points, with a roof for each compute type."""
    placed = [
        (point.name, point.prediction, rate)
        for point in read.points
        if point.prediction and (rate := efficiency(point).flops_per_s) is not None
    ]
    roofs = {
        prediction.compute_type: prediction
        for _, prediction, _ in placed
        if prediction.matmul_flops_per_s is not None
    }
    if not placed or not roofs:
        return None
    marks = tuple(
        Series(
            name=name,
            points=(Point(x=intensity(prediction), y=rate, label=name),),
        )
        for name, prediction, rate in placed
    )
    xs = [
        *(intensity(prediction) for _, prediction, _ in placed),
        *(_ridge(prediction) for prediction in roofs.values()),
    ]
    lines = tuple(_roof(prediction, min(xs) / 4, max(xs) * 4) for prediction in roofs.values())
    return Plot(
        title="Roofline",
        kind="roofline",
        x_label="intensity (FLOP/byte)",
        y_label="model FLOP/s",
        x_unit="count",
        y_unit="flops_per_s",
        log_x=True,
        log_y=True,
        series=(*lines, *marks),
    )


def intensity(prediction: Prediction) -> float:
    """Model FLOPs over compulsory bytes of a step."""
    return (model_flops(prediction) or 0.0) / compulsory_bytes(prediction)


def _measured(x: int, point: Configuration) -> Point | None:
    step_s = None if point.measurement is None else typical_s(point.measurement)
    if step_s is None:
        return None
    return Point(x=x, y=step_s.estimate, low=step_s.low, high=step_s.high, label=point.name)


def _paired(x: int, trial: Trial) -> Point | None:
    if trial.time_ratio is None or not trial.pairs:
        return None
    base_s = statistics.median(pair.base_s for pair in trial.pairs)
    ratio = trial.time_ratio
    return Point(
        x=x,
        y=ratio.estimate * base_s,
        low=ratio.low * base_s,
        high=ratio.high * base_s,
        label=f"step {x}: {trial.lever}",
    )


def _ridge(prediction: Prediction) -> float:
    return (prediction.matmul_flops_per_s or 0.0) / prediction.bytes_per_s


def _roof(prediction: Prediction, low: float, high: float) -> Series:
    rate = prediction.matmul_flops_per_s or 0.0
    ridge = _ridge(prediction)
    return Series(
        name=f"{prediction.compute_type} roof",
        points=(
            Point(x=low, y=low * prediction.bytes_per_s),
            Point(x=ridge, y=rate),
            Point(x=high, y=rate),
        ),
    )


STRICTEST_FIRST: tuple[NumericsClass, ...] = ("exact", "reordered", "approximate")
NEAR = 0.01
"""A smaller difference in time or energy counts as none, because screenings repeat only to about that."""


class Seen(NamedTuple):
    """A timed configuration."""

    case: LeverCase
    step_s: float
    ratio: Interval
    """Its step time over the baseline's, from all trials that lead there."""
    peak_bytes: int
    step_j: float | None
    numerics: NumericsClass
    """The weakest class of the levers between the baseline and it."""
    confirmed: bool


SAME = Interval(estimate=1.0, low=1.0, high=1.0)
UNKNOWN = Interval(estimate=1.0, low=0.0, high=math.inf)


def pareto_section(study: Study, read: RunParts) -> Section:
    """The front; empty where fewer than two configurations are left."""
    found = pareto_front(seen(study.trials, read.baseline.case), study.trials)
    blocks = () if len(found) < 2 else (TableBlock(table=without_empty(_table(found, read))),)
    return Section(title="Other good configurations", blocks=blocks)


def seen(trials: tuple[Trial, ...], baseline: LeverCase) -> tuple[Seen, ...]:
    """Each configuration once, by its furthest trial. Configurations with wrong numbers are left out.

    Two passes are needed: a lever may have been screened on a base that was confirmed only later.
    """
    found: dict[LeverCase, Seen] = {}
    by_stage = sorted(trials, key=lambda each: each.stage == "confirmed")
    for trial in (*by_stage, *by_stage):
        if not trial.pairs or not same_work(trial.candidate, baseline):
            continue
        if trial.numerics is not None and trial.numerics.verdict != "holds":
            found.pop(trial.candidate, None)
            continue
        direct = trial.base == baseline
        if direct:
            _enter(found, _of_baseline(trial))
        known = found.get(trial.candidate)
        # A trial against the baseline itself says more than the product of the steps between.
        if direct or known is None or not known.confirmed or known.ratio == UNKNOWN:
            _enter(found, _of_candidate(trial, found.get(trial.base)))
    return tuple(found.values())


def pareto_front(found: tuple[Seen, ...], trials: Sequence[Trial] = ()) -> tuple[Seen, ...]:
    """The configurations that no other beats in one respect without being worse in another, fastest first.

    Two are compared by the trial of one against the other where `trials` have one, because its figures come
    from the same processes. A configuration that was not shown to differ from the baseline ranks beside it
    and never above: the estimate of an interval that holds 1 is no ground for a rank.
    """
    direct = _direct(trials)
    left = [one for one in found if not any(_beats(other, one, direct) for other in found)]
    return tuple(sorted(left, key=_rank))


def _rank(one: Seen) -> tuple[float, bool, float]:
    shown = one.ratio if _differs(one.ratio) else SAME
    return shown.estimate, one.ratio != SAME, one.ratio.estimate


def _differs(ratio: Interval) -> bool:
    return ratio.high < 1 or ratio.low > 1


def _enter(found: dict[LeverCase, Seen], one: Seen | None) -> None:
    if one is not None and not (one.case in found and found[one.case].confirmed > one.confirmed):
        found[one.case] = one


def _of_baseline(trial: Trial) -> Seen | None:
    if trial.base_peak_bytes is None:
        return None
    return Seen(
        case=trial.base,
        step_s=_middle([pair.base_s for pair in trial.pairs]),
        ratio=SAME,
        peak_bytes=trial.base_peak_bytes,
        step_j=_counted([pair.base_j for pair in trial.pairs]),
        numerics="exact",
        confirmed=trial.stage == "confirmed",
    )


def _of_candidate(trial: Trial, below: Seen | None) -> Seen | None:
    if trial.candidate_peak_bytes is None:
        return None
    kind = trial.numerics.declared if trial.numerics is not None else "approximate"
    return Seen(
        case=trial.candidate,
        step_s=_middle([pair.candidate_s for pair in trial.pairs]),
        ratio=_over_baseline(below, trial.time_ratio),
        peak_bytes=trial.candidate_peak_bytes,
        step_j=_counted([pair.candidate_j for pair in trial.pairs]),
        numerics=_weaker("approximate" if below is None else below.numerics, kind),
        confirmed=trial.stage == "confirmed",
    )


def _over_baseline(below: Seen | None, ratio: Interval | None) -> Interval:
    """The product of both ratios, as wide as both intervals together: they were measured in different
    processes."""
    if below is None or ratio is None or below.ratio == UNKNOWN:
        return UNKNOWN
    return Interval(
        estimate=below.ratio.estimate * ratio.estimate,
        low=below.ratio.low * ratio.low,
        high=below.ratio.high * ratio.high,
    )


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _counted(joules: Sequence[float | None]) -> float | None:
    counted = [each for each in joules if each is not None]
    return _middle(counted) if len(counted) == len(joules) else None


def _weaker(one: NumericsClass, other: NumericsClass) -> NumericsClass:
    return max(one, other, key=STRICTEST_FIRST.index)


Direct = Mapping[tuple[LeverCase, LeverCase], Trial]
"""The trials by base and candidate."""


def _direct(trials: Sequence[Trial]) -> Direct:
    """The timed trials by base and candidate; a confirmed one before a screened one."""
    timed = (trial for trial in trials if trial.pairs and trial.time_ratio is not None)
    by_stage = sorted(timed, key=lambda trial: trial.stage == "confirmed")
    return {(trial.base, trial.candidate): trial for trial in by_stage}


def _beats(other: Seen, one: Seen, direct: Direct) -> bool:
    """Whether it is as good in every respect and better in one. Times differ only where their intervals show
    it."""
    if other is one or STRICTEST_FIRST.index(other.numerics) > STRICTEST_FIRST.index(one.numerics):
        return False
    ratios = _ratios(other, one, direct)
    if max(ratios) > 1 + NEAR:
        return False
    stricter = STRICTEST_FIRST.index(other.numerics) < STRICTEST_FIRST.index(one.numerics)
    return min(ratios) < 1 - NEAR or stricter


def _ratios(other: Seen, one: Seen, direct: Direct) -> list[float]:
    """The other's time, peak memory and energy over the one's, as far as they are known: from a trial between
    the two, else each from its own trials."""
    if (trial := direct.get((one.case, other.case))) is not None:
        return _trial_ratios(trial)
    if (trial := direct.get((other.case, one.case))) is not None:
        return [1 / ratio for ratio in _trial_ratios(trial)]
    apart = other.ratio.high < one.ratio.low or other.ratio.low > one.ratio.high
    ratios = [
        other.ratio.estimate / one.ratio.estimate if apart else 1.0,
        other.peak_bytes / one.peak_bytes,
    ]
    if other.step_j is not None and one.step_j is not None:
        ratios.append(other.step_j / one.step_j)
    return ratios


def _trial_ratios(trial: Trial) -> list[float]:
    """Candidate over base. The time's ratio is 1 where its interval holds 1."""
    ratios = []
    if trial.time_ratio is not None:
        ratios.append(trial.time_ratio.estimate if _differs(trial.time_ratio) else 1.0)
    if trial.base_peak_bytes and trial.candidate_peak_bytes:
        ratios.append(trial.candidate_peak_bytes / trial.base_peak_bytes)
    if trial.energy_ratio is not None:
        ratios.append(trial.energy_ratio.estimate)
    return ratios


def _table(found: tuple[Seen, ...], read: RunParts) -> Table:
    return Table(
        title="",
        columns=(
            Column(name="configuration"),
            spread_column("speed-up"),
            Column(name="peak memory", unit="bytes"),
            Column(name="energy a step", unit="j"),
            Column(name="numerics"),
            Column(name="known by"),
        ),
        rows=tuple(
            (
                changes(one.case, read.baseline.case) or "baseline",
                _speedup(one),
                one.peak_bytes,
                one.step_j,
                one.numerics,
                "pairs" if one.confirmed else "a screening",
            )
            for one in found
        ),
        note=f"Configurations that no other tried one beats in {_respects(found)} at once. "
        f"Differences under {NEAR:.0%}, and times with overlapping intervals, count as equal. "
        "Two that were tried against each other are compared by that trial. Speed-up: over the "
        "baseline, as the product of the trials that lead there. Numerics: the weakest class of the "
        "levers in between, or approximate where it was not checked.",
    )


def _speedup(one: Seen) -> str | None:
    if one.ratio in (SAME, UNKNOWN):
        return None
    return format_spread(inverted(one.ratio), "ratio")


def _respects(found: tuple[Seen, ...]) -> str:
    """The compared respects. Energy is one only where it was counted."""
    counted = any(each.step_j is not None for each in found)
    return f"time, peak memory{', energy' if counted else ''} and numerics"
