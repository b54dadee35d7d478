"""The time a step was expected to take, beside what it took: predicted by its operators, and at least.

Everything is of a row whose study asks for the device's ceilings.
"""

from typing import Any

from peakward.hardware import devices
from peakward.prediction.floor import floor
from peakward.prediction.time.device_model import device_model
from peakward.prediction.time.errors_seen import LEVEL
from peakward.prediction.time.step import step_time
from peakward.records.case import ModelCase
from peakward.records.device import Device
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Interval
from peakward.records.prediction import Prediction
from peakward.studies.engine import Row, time_ratio
from peakward.studies.peaks import predicted_peak
from peakward.studies.values import Value, spread


def device(row: Row[Any]) -> Device | None:
    """The catalogued device that the ceilings are of."""
    if row.calibration is None:
        return None
    here = row.calibration.environment
    return devices.match(here.device_name, here.device_memory_bytes)


def expected_s(row: Row[Any]) -> Interval | None:
    """The predicted step time; None on a CPU, of settings that are not covered, and without rates."""
    case = row.point.case
    if not isinstance(case, ModelCase) or case.device != "cuda" or row.calibration is None:
        return None
    try:
        return step_time(case, device_model(row.calibration, device(row))).step_s
    except PeakwardError:
        return None


def least(row: Row[Any]) -> Prediction | None:
    """The step's floor under the ceilings."""
    if row.calibration is None or not isinstance(row.point.case, ModelCase):
        return None
    return floor(row.point.case, calibration=row.calibration, device=device(row))


def floor_s(row: Row[Any]) -> float | None:
    """In seconds; None where a ceiling is not known."""
    found = least(row)
    return None if found is None else found.floor_s


def bandwidth_share(row: Row[Any]) -> Interval | None:
    """The time that the compulsory bytes take at the copy bandwidth, as a share of the measured time."""
    found = least(row)
    if found is None or row.time is None:
        return None
    memory_s = sum(each.memory_s for each in found.phases)
    return Interval(
        estimate=memory_s / row.time.estimate,
        low=memory_s / row.time.high,
        high=memory_s / row.time.low,
        level=row.time.level,
    )


def over_expected(row: Row[Any]) -> Interval | None:
    """The measured time over the predicted estimate, with the interval of the measurement."""
    found = expected_s(row)
    if found is None or row.time is None:
        return None
    exact = Interval(
        estimate=found.estimate, low=found.estimate, high=found.estimate, level=row.time.level
    )
    return time_ratio(exact, row.time)


EXPECTED = spread("predicted", expected_s, level=LEVEL)
FLOOR = Value("floor", "s", floor_s)
OVER_EXPECTED = Value("measured over predicted", "ratio", over_expected)
SHARE = Value("share of the bandwidth", "share", bandwidth_share)
EXPECTED_PEAK = Value("predicted peak", "bytes", lambda row: predicted_peak(row.point.case))
