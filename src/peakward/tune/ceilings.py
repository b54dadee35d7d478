"""Finds this machine's best rates, and from them the least time of a case."""

from typing import TYPE_CHECKING

from peakward.hardware import devices
from peakward.prediction.floor import floor
from peakward.records.calibration import Calibration
from peakward.records.case import LeverCase, ModelCase
from peakward.records.environment import Environment
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
