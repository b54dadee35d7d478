"""The least time a step can take on a device: arithmetic over its rate, traffic over its bandwidth.

A phase's floor is the longer of its model FLOPs (`predict.flops`) over the matmul rate of the
case's compute type, and its compulsory bytes (`predict.traffic`) over the bandwidth: both at once
and each without a pause, after the roofline model (Williams, Waterman, Patterson, 2009). The
step's floor is the sum over its phases, which run one after another.

Assumed, each so that the floor lies below the truth: every product runs at the best rate measured
for square ones; under `fp8` the head and attention, which stay in 16 bits, run at the fp8 rate
too; launches, norms, softmax and optimiser arithmetic take no time; lengths that vary are replaced
by their mean cost (the mean of the longer of two is never below the longer of their means).
"""

from typing import Literal, NamedTuple

from peakward.predict.flops import phase_flops
from peakward.predict.traffic import compulsory_bytes
from peakward.records.calibration import Calibration
from peakward.records.case import ModelCase, Precision
from peakward.records.device import Device
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Phase
from peakward.records.prediction import PhaseFloor, Prediction, Source

COMPUTE_TYPES: dict[Precision, str] = {
    "fp32": "fp32",
    "tf32": "tf32",
    "bf16-mixed": "bf16",
    "fp16-mixed": "fp16",
    "bf16": "bf16",
    "fp8": "fp8",
}


class _Ceilings(NamedTuple):
    device: str
    matmul_flops_per_s: float | None
    bytes_per_s: float
    source: Source


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
    ceilings = _ceilings(kind, calibration, device)
    flops, traffic = phase_flops(case), compulsory_bytes(case)
    phases = tuple(_phase_floor(phase, flops[phase], traffic[phase], ceilings) for phase in flops)
    floors = [phase.floor_s for phase in phases if phase.floor_s is not None]
    return Prediction(
        case=case,
        device=ceilings.device,
        phases=phases,
        floor_s=sum(floors) if len(floors) == len(phases) else None,
        compute_type=kind,
        matmul_flops_per_s=ceilings.matmul_flops_per_s,
        bytes_per_s=ceilings.bytes_per_s,
        source=ceilings.source,
        peak_flops_per_s=_peak(device, kind),
    )


def _ceilings(kind: str, calibration: Calibration | None, device: Device | None) -> _Ceilings:
    candidates = []
    if calibration is not None:
        name = calibration.environment.device_name if device is None else device.name
        rate = calibration.matmul_flops_per_s(kind)
        candidates.append(_Ceilings(name, rate, calibration.copy_bytes_per_s, "calibrated"))
    if device is not None:
        peak, bandwidth = _peak(device, kind), device.bytes_per_s.value
        candidates.append(_Ceilings(device.name, peak, bandwidth, "datasheet"))
    if not candidates:
        raise PeakwardError(
            "expected a calibration or a catalogued device to compute a floor from, got neither: "
            "run `peakward devices calibrate`"
        )
    with_rate = [each for each in candidates if each.matmul_flops_per_s is not None]
    return (with_rate or candidates)[0]


def _phase_floor(phase: Phase, flops: float, compulsory: float, ceilings: _Ceilings) -> PhaseFloor:
    rate = ceilings.matmul_flops_per_s
    memory_s = compulsory / ceilings.bytes_per_s
    if flops == 0:
        compute_s: float | None = 0.0
    else:
        compute_s = None if rate is None else flops / rate
    bound: Literal["compute", "memory"] | None = None
    if compute_s is not None:
        bound = "compute" if compute_s > memory_s else "memory"
    return PhaseFloor(
        phase=phase,
        flops=flops,
        bytes=compulsory,
        compute_s=compute_s,
        memory_s=memory_s,
        floor_s=None if compute_s is None else max(compute_s, memory_s),
        bound=bound,
    )


def _peak(device: Device | None, kind: str) -> float | None:
    if device is None or kind not in device.peak_flops_per_s:
        return None
    return device.peak_flops_per_s[kind].value
