"""The least time a step can take on a device: arithmetic over its rate, traffic over its bandwidth.

A phase's floor is the longer of its model FLOPs (`prediction.flops`) over the matmul rate of the
case's compute type, and its compulsory bytes (`prediction.traffic`) over the bandwidth: both at once
and each without a pause, after the roofline model (Williams, Waterman, Patterson, 2009). The
step's floor is the sum over its phases, which run one after another.

Assumed, each so that the floor lies below the truth: every product runs at the best rate measured
for square ones; under `fp8` the head and attention, which stay in 16 bits, run at the fp8 rate
too; launches, norms, softmax and optimiser arithmetic take no time; lengths that vary are replaced
by their mean cost (the mean of the longer of two is never below the longer of their means).
"""

from typing import Literal, NamedTuple

from peakward.prediction.flops import phase_flops
from peakward.prediction.traffic import compulsory_bytes
from peakward.records.calibration import Calibration
from peakward.records.case import ModelCase, Precision
from peakward.records.device import Device
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Phase
from peakward.records.prediction import PhaseFloor, Prediction, Source

# The two ceilings of a device, and the time that work takes under them.
#
# After the roofline model (Williams, Waterman, Patterson, 2009): arithmetic and traffic run both at once
# and each without a pause, so that the longer of the two is the least time.


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


# The floor of a step.

COMPUTE_TYPES: dict[Precision, str] = {
    "fp32": "fp32",
    "tf32": "tf32",
    "bf16-mixed": "bf16",
    "fp16-mixed": "fp16",
    "bf16": "bf16",
    "fp8": "fp8",
}


def compute_type(case: ModelCase) -> str:
    """The type that the case's matrix products multiply in: fp32, tf32, bf16, fp16 or fp8.

    A CPU has no tf32; what asks for it there computes in fp32.
    """
    if case.device == "cpu" and case.configuration.precision == "tf32":
        return "fp32"
    return COMPUTE_TYPES[case.configuration.precision]


def floor(case: ModelCase, *, calibration: Calibration | None, device: Device | None) -> Prediction:
    """The floor of one step of the case.

    Both ceilings come from one place: the calibration where it measured the case's compute type,
    else the datasheet where it states it, else whichever is there, with no rate. Without a rate
    the phases that compute have no floor, and neither has the step.

    Args:
        case: whose step.
        calibration: the ceilings measured on this device.
        device: its datasheet; also gives the peak that MFU is taken against. None for a CPU and
            for any device that the catalogue does not know.

    Raises:
        PeakwardError: neither a calibration nor a datasheet.
    """
    kind = compute_type(case)
    on = ceilings(kind, calibration, device)
    flops, traffic = phase_flops(case), compulsory_bytes(case)
    phases = tuple(_phase_floor(phase, flops[phase], traffic[phase], on) for phase in flops)
    floors = [phase.floor_s for phase in phases if phase.floor_s is not None]
    return Prediction(
        case=case,
        device=on.device,
        phases=phases,
        floor_s=sum(floors) if len(floors) == len(phases) else None,
        compute_type=kind,
        matmul_flops_per_s=on.matmul_flops_per_s,
        bytes_per_s=on.bytes_per_s,
        source=on.source,
        peak_flops_per_s=peak_flops_per_s(device, kind),
    )


def _phase_floor(phase: Phase, flops: float, compulsory: float, on: Ceilings) -> PhaseFloor:
    times = roof(flops, compulsory, on)
    return PhaseFloor(phase=phase, flops=flops, bytes=compulsory, **times._asdict())
