"""What is predicted of a case of the grid, from a model on the meta device: nothing of it is run."""

from collections.abc import Sequence

import msgspec

from module_grid.cases import GridCase, built, inputs, parts
from peakward.api.predictions import sites
from peakward.lab.models.module_capture import capture_module
from peakward.prediction.memory.peak import CONTEXT_BYTES
from peakward.prediction.planning.module import module_forecast
from peakward.prediction.planning.site import Site
from peakward.records.calibration import Calibration, Rates
from peakward.records.errors import PeakwardError
from peakward.records.op_graph import ModuleCapture
from peakward.records.plan import Forecast

AROUND = (0.93, 1.07)
"""Limits beside the bytes that are said to be reserved: one that should be too small, one that should do."""


class Captured(msgspec.Struct, frozen=True, kw_only=True):
    """A case's step, or why there is none; and limits to try, which need not be predicted well."""

    capture: ModuleCapture | None
    refused: str | None
    limits: tuple[int, ...]


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """A prediction."""

    source: str
    """datasheet; calibrated; moment: calibrated, and by what a call cost the host beside the step; or by
    thread: as moment, and the backward pass by what a call cost in the thread that carries it out."""
    step_s: float
    low_s: float
    high_s: float
    bound: str
    device_s: float
    host_s: float
    peak_bytes: int
    reserved_bytes: int | None
    fits: dict[int, bool]


def captured(case: GridCase, *, with_limits: bool = False) -> Captured:
    """In a process of its own: seconds of Python for a model of 24 layers."""
    try:
        found, refused = _capture(case), None
    except PeakwardError as error:
        found, refused = None, str(error)
    sized = found if with_limits else None
    if with_limits and sized is None and case.compiled != "none":
        sized = _capture(msgspec.structs.replace(case, compiled="none"))
    return Captured(capture=found, refused=refused, limits=() if sized is None else _limits(sized))


def _capture(case: GridCase) -> ModuleCapture:
    model = built(msgspec.structs.replace(case, compiled="none"), "meta")
    return capture_module(
        model,
        kwargs=inputs(case, "cpu"),
        pass_=case.pass_,
        autocast=case.autocast,
        compiled=parts(case, model),
    )


def _limits(capture: ModuleCapture) -> tuple[int, ...]:
    said = module_forecast(capture, _site("h200", None)).memory.reserved_bytes
    return () if said is None else tuple(round(share * said) for share in AROUND)


def told(found: Captured, device: str, calibrations: Sequence[Calibration | None]) -> list[Told]:
    """By each of them; None is the datasheet."""
    if found.capture is None:
        return []
    by = [_site(device, each) for each in calibrations]
    return [_told(found.capture, where, found.limits) for where in by]


def told_of_the_moment(
    found: Captured, device: str, calibration: Calibration | None, beside: Rates
) -> list[Told]:
    """By the calibration and what a call cost the host beside the step; of a train step also with what it
    cost in the thread of the backward pass. None of what was not timed."""
    if found.capture is None or calibration is None:
        return []
    alone = tuple(each for each in beside.launches if each.operation == "autograd")
    known = {
        "moment": (beside.recorded_call_s, msgspec.structs.replace(beside, launches=alone)),
        "by thread": (beside.backward_call_s, beside),
    }
    where = _site(device, calibration)
    return [
        msgspec.structs.replace(_told(found.capture, where.issued_by(launches), ()), source=source)
        for source, (call_s, launches) in known.items()
        if call_s is not None
    ]


def _site(device: str, calibration: Calibration | None) -> Site:
    (where,) = sites((device,), calibration=calibration, group=None, prices=())
    return where


def _told(capture: ModuleCapture, where: Site, limits: tuple[int, ...]) -> Told:
    forecast = module_forecast(capture, where)
    time, memory = forecast.time, forecast.memory
    assert time is not None and memory is not None
    return Told(
        source=time.source,
        step_s=time.step_s.estimate,
        low_s=time.step_s.low,
        high_s=time.step_s.high,
        bound=time.bound,
        device_s=time.device_s,
        host_s=time.host_s,
        peak_bytes=memory.peak_bytes,
        reserved_bytes=memory.reserved_bytes,
        fits={
            each: _fits(module_forecast(capture, where, each + CONTEXT_BYTES)) for each in limits
        },
    )


def _fits(forecast: Forecast) -> bool:
    return bool(forecast.fits)
