"""What was fitted to stored steps, fitted anew without one model at a time and judged by that model.

Refitted are the host's costs (`accuracy.host_costs`) and the factors of the intervals
(`errors_seen`). The device's constants cannot be: their traces are not stored.
"""

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from accuracy import host_costs
from accuracy.records import HeldOut, Refit, Replayed
from peakward.prediction.time.device_model import DeviceModel
from peakward.prediction.time.errors_seen import LEVEL
from peakward.records.prediction import Waits

Factors = tuple[float, float]


class Judged(NamedTuple):
    """A case, by fits to the cases of other models."""

    case: Replayed
    refitted_s: float | None
    """Its step; None where no cost is fitted."""
    held: bool
    """Whether the interval holds what was measured."""


def refits(cases: Sequence[Replayed], on: DeviceModel) -> list[Refit]:
    """Of both bounds, as far as each can be, on the device as it was calibrated."""
    host = [each for each in cases if each.calibrated.bound == "host" and host_costs.covered(each)]
    device = [each for each in cases if each.calibrated.bound == "device"]
    return [_refit("host", host, on), _refit("device", device, on)]


def factors(cases: Sequence[Replayed]) -> Factors:
    """Of the predicted time, between which LEVEL of the measured ones lie."""
    low, high = np.quantile([_ratio(each) for each in cases], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _refit(bound: Waits, cases: Sequence[Replayed], on: DeviceModel) -> Refit:
    models = sorted({each.case.model.name for each in cases})
    judged = {model: _judged(bound, model, cases, on) for model in models}
    together = [each for members in judged.values() for each in members]
    return Refit(
        bound=bound,
        constants=host_costs.fit(cases, on.call_s) if bound == "host" else {},
        factors=factors(cases),
        models=tuple(_held_out(model, judged[model]) for model in models),
        together=_held_out("each in turn", together),
    )


def _judged(bound: Waits, model: str, cases: Sequence[Replayed], on: DeviceModel) -> list[Judged]:
    """The cases of a model, by fits to those of all others."""
    others = [each for each in cases if each.case.model.name != model]
    costs = host_costs.fit(others, on.call_s) if bound == "host" else None
    between = factors(others)
    return [
        Judged(
            each,
            None if costs is None else host_costs.step_s(each, costs, on),
            _holds(between, each),
        )
        for each in cases
        if each.case.model.name == model
    ]


def _held_out(model: str, judged: Sequence[Judged]) -> HeldOut:
    refitted = [
        abs(each.refitted_s / each.case.measured_s - 1)
        for each in judged
        if each.refitted_s is not None
    ]
    return HeldOut(
        model=model,
        n=len(judged),
        median=median(abs(each.case.error("calibrated")) for each in judged),
        median_refitted=median(refitted) if refitted else None,
        coverage=sum(each.case.held("calibrated") for each in judged) / len(judged),
        coverage_refitted=sum(each.held for each in judged) / len(judged),
    )


def _holds(between: Factors, case: Replayed) -> bool:
    return between[0] <= _ratio(case) <= between[1]


def _ratio(case: Replayed) -> float:
    return case.measured_s / case.calibrated.step_s.estimate
