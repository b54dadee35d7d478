"""The least times of serving a workload on a device.

Each step takes the longer of its model FLOPs over the matmul rate and its compulsory traffic over
the bandwidth (`prediction.floor`, `inference.cost`). A step of mean cost stands for all decode
steps: the mean of the longer of two is never below the longer of their means. Launches, norms,
softmax, sampling, the scheduler and the unpacking of quantised weights take no time. A calibrated
bandwidth is that of a copy; decoding mostly reads, and may beat it by a little.
"""

from peakward.prediction.floor import Ceilings, ceilings
from peakward.prediction.inference.cost import largest_batch_size, serving_cost
from peakward.prediction.inference.speculation import speculation_floor
from peakward.prediction.inference.step import compute_bound_batch_size, step_floor
from peakward.records.calibration import Calibration
from peakward.records.device import Device
from peakward.records.errors import PeakwardError
from peakward.records.inference import (
    Pace,
    ServingFloor,
    ServingWorkload,
    SpeculationFloor,
    StepFloor,
)
from peakward.records.model_shape import ModelShape


def serving_floor(
    shape: ModelShape,
    workload: ServingWorkload,
    *,
    calibration: Calibration | None,
    device: Device | None,
    memory_limit_bytes: int | None = None,
) -> ServingFloor:
    """The floor of serving the workload, and what follows from it.

    Args:
        calibration: the ceilings measured on this device.
        device: its datasheet. Both ceilings come from one of the two, chosen as `prediction.floor` does.
        memory_limit_bytes: for the largest batch; None: not asked for.

    Raises:
        PeakwardError: a workload that cannot be served, a limit below a byte, or no matmul
            rate for the compute type.
    """
    cost = serving_cost(shape, workload)
    on = ceilings(workload.compute_type, calibration, device)
    rate = _known_rate(workload, on)
    prefilled, decoded = step_floor(cost.prefill, on), step_floor(cost.decode, on)
    speculated = speculation_floor(shape, workload, on)
    return ServingFloor(
        cost=cost,
        device=on.device,
        matmul_flops_per_s=rate,
        bytes_per_s=on.bytes_per_s,
        source=on.source,
        prefill=prefilled,
        decode=decoded,
        speculation=speculated,
        pace=_pace(workload, prefilled, decoded, speculated),
        memory_limit_bytes=memory_limit_bytes,
        largest_batch_size=_largest_batch_size(shape, workload, memory_limit_bytes),
        compute_bound_batch_size=compute_bound_batch_size(shape, workload, on),
    )


def _known_rate(workload: ServingWorkload, on: Ceilings) -> float:
    if on.matmul_flops_per_s is None:
        raise PeakwardError(
            f"expected a matmul rate in {workload.compute_type} for {on.device}, got none: "
            "choose another compute type, or run `peakward devices calibrate`"
        )
    return on.matmul_flops_per_s


def _largest_batch_size(
    shape: ModelShape, workload: ServingWorkload, limit_bytes: int | None
) -> int | None:
    if limit_bytes is None:
        return None
    if limit_bytes < 1:
        raise PeakwardError(
            f"expected a memory limit of at least 1 byte, got {limit_bytes}: "
            "give a positive size, or none"
        )
    return largest_batch_size(shape, workload, limit_bytes)


def _pace(
    workload: ServingWorkload,
    prefilled: StepFloor,
    decoded: StepFloor,
    speculated: SpeculationFloor | None,
) -> Pace:
    first_s, token_s, draft_prefill_s = prefilled.floor_s, decoded.floor_s, 0.0
    if speculated is not None:
        token_s = speculated.round_s / speculated.tokens_per_round
        draft_prefill_s = speculated.draft_prefill_s
    request_s = draft_prefill_s + first_s + (workload.output_len - 1) * token_s
    return Pace(
        time_to_first_token_s=first_s,
        time_per_output_token_s=token_s,
        request_s=request_s,
        prefill_tokens_per_s=workload.batch_size * workload.prompt_len / first_s,
        decode_tokens_per_s=workload.batch_size / token_s,
        output_tokens_per_s=workload.batch_size * workload.output_len / request_s,
    )
