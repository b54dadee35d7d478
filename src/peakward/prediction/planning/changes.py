"""The change that each lever would make by itself."""

from collections.abc import Iterable
from typing import NamedTuple

from peakward.levers import catalogue as lever_catalogue
from peakward.levers.catalogue import LEVERS
from peakward.prediction.planning.forecast import forecast
from peakward.prediction.planning.site import Site
from peakward.prediction.time.errors_seen import speedup
from peakward.records.case import ModelCase
from peakward.records.lever import Lever
from peakward.records.plan import Absent, Change, Forecast

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
