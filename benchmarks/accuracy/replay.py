"""Every measured case predicted, or the reason why it is not."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from accuracy.measured import Stored, device_key, is_replayed, is_timed, median_s
from accuracy.records import Merged, Predicted, Refusal, Replayed
from accuracy.seen import seen
from peakward.hardware.devices import device
from peakward.prediction.time.device_model import DeviceModel, device_model
from peakward.prediction.time.step import step_time
from peakward.records import codec
from peakward.records.calibration import Calibration
from peakward.records.case import ModelCase
from peakward.records.case_key import case_key
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Measurement
from peakward.records.prediction import StepTime
from peakward.report.cases import label
from stored_results import index

FORMER_KERNELS = "a step in fp8 by kernels that the code no longer has"


class Site(NamedTuple):
    """A device with a stored calibration, and the models of it by source."""

    device: str
    """Its key in the catalogue."""
    calibration: str
    """The newest file of one."""
    calibrated: DeviceModel
    datasheet: DeviceModel


def sites(folder: Path) -> dict[str, Site]:
    """Every GPU that has a calibration there, by key."""
    found = {}
    for stored in index(folder).of("calibration"):
        calibration = codec.from_json(stored.read(), Calibration)
        key = device_key(calibration.environment)
        if key is not None:
            models = device_model(calibration, device(key)), device_model(None, device(key))
            found[key] = Site(key, stored.path().name, *models)
    return found


def replay(cases: Iterable[Merged], on: Site) -> tuple[list[Replayed], list[Refusal]]:
    """Those that `step_time` predicts, and the others by reason."""
    replayed, refused = [], Counter[str]()
    for each in cases:
        try:
            pair = step_time(each.case, on.calibrated), step_time(each.case, on.datasheet)
        except PeakwardError as error:
            refused[str(error).partition(":")[0]] += 1
        else:
            replayed.append(_replayed(each, *pair, on.device))
    return replayed, [Refusal(reason=each, n=n) for each, n in refused.most_common()]


def not_replayed(measurements: Iterable[Stored]) -> list[Refusal]:
    """What is no case to predict: operators alone, cases that did not run, and former kernels."""
    counts = Counter(
        _why_not(each.measurement)
        for each in measurements
        if not is_replayed(each.measurement) or not isinstance(each.measurement.case, ModelCase)
    )
    return [Refusal(reason=each, n=n) for each, n in counts.most_common()]


def _why_not(measurement: Measurement) -> str:
    if not isinstance(measurement.case, ModelCase):
        return "an operator alone, not a step"
    if measurement.status != "ok":
        return f"the case ended {measurement.status}: no time was measured"
    if not is_timed(measurement):
        return "memory alone was measured, in a single step"
    return FORMER_KERNELS


def _replayed(each: Merged, calibrated: StepTime, datasheet: StepTime, key: str) -> Replayed:
    first = each.taken[0]
    clock = first.telemetry.sm_clock_mhz if first.telemetry is not None else None
    return Replayed(
        key=case_key(each.case),
        label=label(each.case),
        case=each.case,
        files=each.files,
        boards=each.boards,
        measured_s=each.step_s,
        medians_s=tuple(median_s(one) for one in each.all),
        verdict=each.verdict,
        doubts=first.validity.reasons if first.validity is not None else (),
        measured_phases=first.phases,
        sm_clock_mhz=None if clock is None else clock.estimate,
        seen=seen(each, calibrated.bound, key),
        calibrated=_predicted(calibrated),
        datasheet=_predicted(datasheet),
    )


def _predicted(time: StepTime) -> Predicted:
    return Predicted(source=time.source, step_s=time.step_s, bound=time.bound, phases=time.phases)
