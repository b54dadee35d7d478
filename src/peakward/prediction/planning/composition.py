"""Which levers together: the fastest that can be had one by one, and then what makes it fit."""

from collections.abc import Iterable, Iterator
from functools import reduce
from itertools import combinations
from typing import NamedTuple

from peakward.levers.catalogue import LEVERS, lever
from peakward.prediction.planning.attempt import Attempts
from peakward.prediction.planning.changes import LEAST_GAIN, Base, change, gain, obstacle, pulled
from peakward.prediction.planning.forecast import timed
from peakward.prediction.planning.room import is_too_large
from peakward.prediction.planning.site import Site
from peakward.records.case import ModelCase
from peakward.records.lever import Lever
from peakward.records.plan import Change

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
        tried = _with(kept, lever(name))
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
        for levers in (start, *(reduce(_with, map(lever, names), start) for names in SMALLER)):
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
