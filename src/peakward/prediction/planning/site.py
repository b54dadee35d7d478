"""One kind of device as a plan sees it: what it can do, what it offers, what it costs."""

from typing import NamedTuple

from peakward.hardware.devices import least_memory_bytes
from peakward.prediction.time.device_model import DeviceModel, device_model
from peakward.records.calibration import Calibration
from peakward.records.device import Device
from peakward.records.errors import PeakwardError
from peakward.records.plan import DeviceGroup


class Site(NamedTuple):
    """Where a case is planned to run."""

    device: Device
    calibration: Calibration | None
    model: DeviceModel | None
    """None where times cannot be predicted, for the reason beside it."""
    why_no_model: str
    group: DeviceGroup | None
    price_per_gpu_hour: float | None

    def limit_bytes(self, case_limit_bytes: int | None) -> int:
        """Bytes that one GPU offers, or that the case allows itself."""
        offered = least_memory_bytes(self.device)
        return offered if case_limit_bytes is None else min(offered, case_limit_bytes)


def site(
    device: Device,
    *,
    calibration: Calibration | None = None,
    host_is_known: bool = True,
    group: DeviceGroup | None = None,
    price_per_gpu_hour: float | None = None,
) -> Site:
    """A device by its calibration where there is one, else by its datasheet."""
    try:
        model, why = device_model(calibration, device, host_is_known=host_is_known), ""
    except PeakwardError as refusal:
        model, why = None, str(refusal)
    return Site(device, calibration, model, why, group, price_per_gpu_hour)
