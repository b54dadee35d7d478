"""Finds what this machine can do and what a case takes on it, before anything is measured.

Ceilings are measured here; floors and forecasts are computed from them: of a decoder from its shape, of a
user's module from its captured operators.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from peakward.hardware import devices
from peakward.levers.catalogue import unseen
from peakward.prediction.floor import floor
from peakward.prediction.planning.forecast import forecast
from peakward.prediction.planning.module import module_forecast
from peakward.prediction.planning.site import Site, site
from peakward.records.calibration import Calibration
from peakward.records.case import LeverCase, ModelCase, ModuleCase, StepCase
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Environment
from peakward.records.op_graph import ModuleCapture
from peakward.records.plan import Forecast
from peakward.records.prediction import Prediction

if TYPE_CHECKING:
    from peakward.lab.measure.sweep import Sweep
    from peakward.store.database import Store


def calibrated(sweep: "Sweep", store: "Store", case: LeverCase) -> Calibration:
    """This machine's ceilings, measured now where the store has none."""
    known = store.calibration(sweep.environment.key)
    if known is None:
        known = sweep.workers.calibrate(case.device)
        store.add_calibration(known)
    return known


def floor_of(
    case: LeverCase, environment: Environment, calibration: Calibration | None
) -> Prediction | None:
    """The case's floor on this machine; None of a user's module, whose maths is not known."""
    if not isinstance(case, ModelCase):
        return None
    device = devices.match(environment.device_name, environment.device_memory_bytes)
    return floor(case, calibration=calibration, device=device)


Capture = Callable[[ModuleCase], ModuleCapture]
"""Raises PeakwardError where there is none."""


class Forecasts:
    """By the calibration where it is a full one (`peakward devices calibrate`), else by the datasheet.

    Args:
        capture: the operators of a module's step; asked where a forecast is to be had alone.
    """

    def __init__(
        self, environment: Environment, calibration: Calibration | None, capture: Capture
    ) -> None:
        self._environment, self._capture = environment, capture
        self.calibration = calibration
        device = devices.match(environment.device_name, environment.device_memory_bytes)
        self.here: Site | None = None if device is None else site(device, calibration=calibration)
        """None where the device is not catalogued."""
        self._made: dict[LeverCase, Forecast | str] = {}

    def of(self, case: LeverCase) -> Forecast | None:
        """Time and memory of the case on this machine; None for the reason that `why_none` has."""
        found = self._forecast(case)
        return None if isinstance(found, str) else found

    def why_none(self, case: LeverCase) -> str | None:
        """Why the case has no forecast, or None where it has one."""
        found = self._forecast(case)
        return found if isinstance(found, str) else None

    def _forecast(self, case: LeverCase) -> Forecast | str:
        if case not in self._made:
            self._made[case] = self._new(case)
        return self._made[case]

    def _new(self, case: LeverCase) -> Forecast | str:
        if case.device != "cuda" or self._environment.device_type != "cuda":
            return "steps on a CPU are not predicted"
        if self.here is None:
            return f"{self._environment.device_name} is not in the catalogue of devices"
        if isinstance(case, StepCase):
            return "a step given as a function does not say what it computes"
        if not isinstance(case, ModuleCase):
            return forecast(case, self.here)
        if (reason := unseen(case)) is not None:
            return reason
        try:
            told = module_forecast(self._capture(case), self.here)
        except PeakwardError as refusal:
            return str(refusal)
        return msgspec.structs.replace(told, case=case)
