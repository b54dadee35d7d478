"""The least time of one step of serving, and the batch from which decoding is bound by compute."""

import msgspec

from peakward.prediction.floor import Ceilings, roof
from peakward.prediction.inference.cost import decode_step
from peakward.prediction.traffic import TOKEN_ID_BYTES, cache_bytes_per_token, mean_reach
from peakward.records.inference import Cost, ServingWorkload, StepFloor
from peakward.records.model_shape import ModelShape


def step_floor(cost: Cost, on: Ceilings) -> StepFloor:
    """The longer of arithmetic and traffic, under ceilings whose matmul rate is known."""
    return StepFloor(**roof(cost.flops, cost.bytes, on)._asdict())


def compute_bound_batch_size(
    shape: ModelShape, workload: ServingWorkload, on: Ceilings
) -> int | None:
    """The smallest batch whose mean decode step takes longer to compute than to move.

    Arithmetic is linear in the batch; traffic grows ever more slowly, for weights are shared and
    experts and table rows are touched again. So compute time less memory time is convex in the
    batch and below 0 without one: it turns once at most, and a search by halves finds where.

    Returns:
        None where a sequence's own cache takes longer to move than its arithmetic: then no batch
        is bound by compute.
    """

    def is_compute_bound(batch_size: int) -> bool:
        batch = msgspec.structs.replace(workload, batch_size=batch_size)
        step = decode_step(shape, batch, workload.contexts)
        return roof(step.flops, step.bytes, on).bound == "compute"

    reach = mean_reach(workload.contexts, shape.window)
    own_bytes = reach * cache_bytes_per_token(shape, workload.cache_type) + TOKEN_ID_BYTES
    one = decode_step(shape, msgspec.structs.replace(workload, batch_size=1), workload.contexts)
    # A margin of rounding: nearer than this, the crossover lies at no batch that anyone can run.
    if roof(one.flops, own_bytes * (1 + 1e-9), on).bound != "compute":
        return None
    low, high = 0, 1
    while not is_compute_bound(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_compute_bound(middle) else (middle, high)
    return high
