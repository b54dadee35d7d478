"""The changes that levers would make: one by one, together, and to fit."""

from collections.abc import Iterable, Iterator
from functools import reduce
from itertools import combinations
from typing import NamedTuple

from peakward.levers import catalogue as lever_catalogue
from peakward.levers.catalogue import LEVERS
from peakward.prediction.planning.forecast import forecast, is_too_large, timed
from peakward.prediction.planning.site import Attempts, Site
from peakward.prediction.time.errors_seen import speedup
from peakward.records.case import ModelCase
from peakward.records.lever import Foretold, Lever
from peakward.records.measurement import Interval
from peakward.records.memory import MemoryPrediction
from peakward.records.plan import Absent, Change, Forecast

# The change that each lever would make by itself.

LEAST_GAIN = 1.01
"""The least ratio of step times; less is no reason to pull a lever."""


class Base(NamedTuple):
    """The case that levers are pulled on."""

    case: ModelCase
    forecast: Forecast


def changes(base: Base, on: Site) -> tuple[Change, ...]:
    """The change of each lever that makes another case of it; the greatest gain first, levers without one
    last."""
    found = [change((each,), base, on) for each in LEVERS if _differs(each, base.case)]
    return tuple(sorted(found, key=lambda each: -gain(each)))


def change(levers: tuple[Lever, ...], base: Base, on: Site) -> Change:
    """The levers pulled one after another."""
    names = tuple(lever.name for lever in levers)
    reason = obstacle(levers, base.case, on)
    if reason is not None:
        return Change(
            levers=names,
            step_s=None,
            speedup=None,
            needed_bytes=None,
            fits=None,
            absent=(Absent(figure="all", reason=f"cannot apply: {reason}"),),
        )
    found = forecast(pulled(base.case, levers), on)
    ratio = None
    if (
        base.forecast.time is not None
        and found.time is not None
        and base.forecast.step_s
        and found.step_s
    ):
        ratio = speedup(
            base.forecast.time, found.time, base.forecast.step_s.estimate / found.step_s.estimate
        )
    return Change(
        levers=names,
        step_s=found.step_s,
        speedup=ratio,
        needed_bytes=found.needed_bytes,
        fits=found.fits,
        absent=found.absent,
        never_measured=() if found.time is None else found.time.never_measured,
    )


def gain(found: Change) -> float:
    """0 where it is unknown."""
    return 0.0 if found.speedup is None else found.speedup.estimate


def pulled(case: ModelCase, levers: Iterable[Lever]) -> ModelCase:
    """The case with the levers resolved into it, the last last."""
    for lever in levers:
        case = lever_catalogue.pull(lever, case)
    return case


def obstacle(levers: tuple[Lever, ...], case: ModelCase, on: Site) -> str | None:
    """Why the last of the levers cannot apply on top of the others there, or None."""
    stated = on.device.compute_capability
    capability = None if stated is None else stated.value
    *before, last = levers
    base = pulled(case, before)
    lacking = (
        lever_catalogue.lacking(last, on.device.accelerator) if case.device == "cuda" else None
    )
    return (
        lacking
        or lever_catalogue.obstacle(last, base, compute_capability=capability, has_compiler=True)
        or lever_catalogue.case_obstacle(
            lever_catalogue.pull(last, base), compute_capability=capability, has_compiler=True
        )
    )


def _differs(lever: Lever, case: ModelCase) -> bool:
    return lever_catalogue.changes(lever, case)


# The predicted effect of a lever on a case: the candidate's forecast over the base's.

_FIGURES = {"step time": "time", "memory": "memory"}
"""The figures of a forecast that a ratio needs, and that ratio."""


def foretold(base: Forecast, candidate: Forecast) -> Foretold:
    """The ratios of step time and of peak memory; what either forecast lacks is absent with its reason.

    Compiled in a way that is not predicted itself, a case has the memory of the same case uncompiled,
    whose ratio to a base would say nothing of compilation: it is absent too.
    """
    known = [gap for gap in (*base.absent, *candidate.absent) if gap.figure in _FIGURES]
    absent = {_FIGURES[gap.figure]: gap for gap in known}
    gaps = [Absent(figure=figure, reason=gap.reason) for figure, gap in absent.items()]
    memory = _memory_ratio(base.memory, candidate.memory)
    if memory is None and "memory" not in absent:
        reason = "a case compiled in a way whose memory is not predicted"
        gaps.append(Absent(figure="memory", reason=reason))
    return Foretold(
        time_ratio=_time_ratio(base, candidate), memory_ratio=memory, absent=tuple(gaps)
    )


def _time_ratio(base: Forecast, candidate: Forecast) -> Interval | None:
    if base.time is None or candidate.time is None or not (base.step_s and candidate.step_s):
        return None
    faster = speedup(base.time, candidate.time, base.step_s.estimate / candidate.step_s.estimate)
    return Interval(
        estimate=1 / faster.estimate, low=1 / faster.high, high=1 / faster.low, level=faster.level
    )


def _memory_ratio(
    base: MemoryPrediction | None, candidate: MemoryPrediction | None
) -> float | None:
    if base is None or candidate is None or base.basis != "step" or candidate.basis != "step":
        return None
    return candidate.peak_bytes / base.peak_bytes


# Which levers together: the fastest that can be had one by one, and then what makes it fit.

SMALLER = (("bf16",), ("bf16", "int8-weights"), ("bf16", "int4-weights"))
"""Levers that leave parameters fewer bytes: bf16 has 8 with gradient and moments, where other precisions have
16; quantised weights where there is no gradient."""


class Composition(NamedTuple):
    """Levers on top of one another."""

    change: Change
    case: ModelCase


def composition(base: Base, alone: Iterable[Change], on: Site) -> Composition | None:
    """The levers that gain, each where it still gains on top of those before. Where those do not fit:
    the fastest of the same with levers that save memory which does. None where no lever helps.
    """
    fast = _fastest(base, [each.levers[0] for each in alone if gain(each) > LEAST_GAIN], on)
    found = _composed(fast, base, on) if fast else None
    if (base.forecast.fits if found is None else found.change.fits) is True:
        return found
    tried = [
        _composed(levers, base, on)
        for levers in _smaller(fast, base, on)
        if not is_too_large(pulled(base.case, levers), on)
    ]
    timed_ = [each for each in tried if each.change.step_s is not None]
    for wanted in (True, None):
        fitting = [each for each in timed_ if each.change.fits is wanted]
        if found is not None and found.change.fits is wanted:
            return found
        if fitting:
            return max(fitting, key=lambda each: gain(each.change))
    return found


def _fastest(base: Base, names: Iterable[str], on: Site) -> tuple[Lever, ...]:
    if base.forecast.step_s is None:
        return ()
    kept: tuple[Lever, ...] = ()
    best_s = base.forecast.step_s.estimate
    for name in names:
        tried = _with(kept, lever_catalogue.lever(name))
        if obstacle(tried, base.case, on) is not None:
            continue
        step_s = timed(pulled(base.case, tried), on, Attempts()).step_s
        if step_s is not None and best_s / step_s.estimate > LEAST_GAIN:
            kept, best_s = tried, step_s.estimate
    return kept


def _smaller(fast: tuple[Lever, ...], base: Base, on: Site) -> Iterator[tuple[Lever, ...]]:
    """The same with what saves memory, alone and together; also without compiled code and graphs,
    whose need is not known as well."""
    savers = [each for each in LEVERS if each.saves == "memory"]
    pairs = [pair for pair in combinations(savers, 2) if _together(*pair)]
    for start in dict.fromkeys((fast, _without(fast, "compile", "cuda_graphs"))):
        for levers in (
            start,
            *(reduce(_with, map(lever_catalogue.lever, names), start) for names in SMALLER),
        ):
            tried = [levers, *(_with(levers, each) for each in savers)]
            tried += [_with(_with(levers, one), other) for one, other in pairs]
            yield from (each for each in tried if each and obstacle(each, base.case, on) is None)


def _together(one: Lever, other: Lever) -> bool:
    """Whether they set no field both."""
    return dict(one.sets).keys().isdisjoint(dict(other.sets))


def _without(kept: tuple[Lever, ...], *fields: str) -> tuple[Lever, ...]:
    """Less those that set one of the fields."""
    return tuple(each for each in kept if dict(each.sets).keys().isdisjoint(fields))


def _composed(levers: tuple[Lever, ...], base: Base, on: Site) -> Composition:
    return Composition(change(levers, base, on), pulled(base.case, levers))


def _with(kept: tuple[Lever, ...], lever: Lever) -> tuple[Lever, ...]:
    """The lever after those kept, in place of those that set the same field."""
    fields = dict(lever.sets)
    return (*(each for each in kept if fields.keys().isdisjoint(dict(each.sets))), lever)


# Which levers would make a case fit that does not.


def relief(case: ModelCase, forecast: Forecast, on: Site) -> tuple[str, ...]:
    """The levers each of which alone makes the case of the forecast fit, the fastest first; none where it
    fits already, or where that is not known."""
    if forecast.fits is not False:
        return ()
    found = changes(Base(case, forecast), on)
    return tuple(each.levers[0] for each in found if each.fits is True)
