"""The two ceilings of a device, and the time that work takes under them.

After the roofline model (Williams, Waterman, Patterson, 2009): arithmetic and traffic run both at
once and each without a pause, so that the longer of the two is the least time.
"""

from typing import Literal, NamedTuple

from peakward.records.calibration import Calibration
from peakward.records.device import Device
from peakward.records.errors import PeakwardError
from peakward.records.prediction import Source


class Ceilings(NamedTuple):
    """Matmul rate in one compute type and bandwidth, both from one source."""

    device: str
    matmul_flops_per_s: float | None
    """None where neither source knows the compute type."""
    bytes_per_s: float
    source: Source


class Roof(NamedTuple):
    """The least time of some work; None where the matmul rate it needs is unknown."""

    compute_s: float | None
    memory_s: float
    floor_s: float | None
    bound: Literal["compute", "memory"] | None


def ceilings(compute_type: str, calibration: Calibration | None, device: Device | None) -> Ceilings:
    """The calibration's ceilings where it measured the compute type, else the datasheet's where it
    states it, else those of whichever is there, with no rate.

    Raises:
        PeakwardError: neither a calibration nor a datasheet.
    """
    candidates = []
    if calibration is not None:
        name = calibration.environment.device_name if device is None else device.name
        rate = calibration.matmul_flops_per_s(compute_type)
        candidates.append(Ceilings(name, rate, calibration.copy_bytes_per_s, "calibrated"))
    if device is not None:
        peak, bandwidth = peak_flops_per_s(device, compute_type), device.bytes_per_s.value
        candidates.append(Ceilings(device.name, peak, bandwidth, "datasheet"))
    if not candidates:
        raise PeakwardError(
            "expected a calibration or a catalogued device to compute a floor from, got neither: "
            "run `peakward devices calibrate`"
        )
    with_rate = [each for each in candidates if each.matmul_flops_per_s is not None]
    return (with_rate or candidates)[0]


def roof(flops: float, bytes_: float, on: Ceilings) -> Roof:
    """The longer of the arithmetic's time and the traffic's; a tie is bound by memory."""
    rate = on.matmul_flops_per_s
    memory_s = bytes_ / on.bytes_per_s
    if flops == 0:
        compute_s: float | None = 0.0
    else:
        compute_s = None if rate is None else flops / rate
    if compute_s is None:
        return Roof(None, memory_s, None, None)
    bound: Literal["compute", "memory"] = "compute" if compute_s > memory_s else "memory"
    return Roof(compute_s, memory_s, max(compute_s, memory_s), bound)


def peak_flops_per_s(device: Device | None, compute_type: str) -> float | None:
    """The datasheet's dense peak of a compute type, or None where nobody states it."""
    if device is None or compute_type not in device.peak_flops_per_s:
        return None
    return device.peak_flops_per_s[compute_type].value
