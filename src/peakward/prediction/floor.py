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

from peakward.prediction.ceilings import Ceilings, ceilings, peak_flops_per_s, roof
from peakward.prediction.flops import phase_flops
from peakward.prediction.traffic import compulsory_bytes
from peakward.records.calibration import Calibration
from peakward.records.case import ModelCase, Precision
from peakward.records.device import Device
from peakward.records.measurement import Phase
from peakward.records.prediction import PhaseFloor, Prediction

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
