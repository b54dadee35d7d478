"""The least times of serving a workload on a device.

Each step takes the longer of its model FLOPs over the matmul rate and its compulsory traffic over
the bandwidth (`prediction.floor`, `inference.cost`). A step of mean cost stands for all decode
steps: the mean of the longer of two is never below the longer of their means. Launches, norms,
softmax, sampling, the scheduler and the unpacking of quantised weights take no time. A calibrated
bandwidth is that of a copy; decoding mostly reads, and may beat it by a little.
"""

import math
from collections.abc import Callable

import msgspec

from peakward.prediction.floor import Ceilings, ceilings, roof
from peakward.prediction.inference.cost import (
    decode_step,
    largest_batch_size,
    prefill,
    serving_cost,
)
from peakward.prediction.traffic import TOKEN_ID_BYTES, cache_bytes_per_token, mean_reach
from peakward.records.calibration import Calibration
from peakward.records.device import Device
from peakward.records.errors import PeakwardError
from peakward.records.inference import (
    Cost,
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


# The least time of one step of serving, from its cost.


def step_floor(cost: Cost, on: Ceilings) -> StepFloor:
    """The longer of arithmetic and traffic, under ceilings whose matmul rate is known."""
    return StepFloor(**roof(cost.flops, cost.bytes, on)._asdict())


# The batch at which decoding turns from bound by memory to bound by compute.


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


# The least time of a round of speculative decoding on a device, and what it gains there.
#
# A round is `draft_len` steps of the draft and one step of the target over draft_len + 1 tokens of
# every sequence, each at the contexts of plain decoding. Unlike the theorem, which takes the target's
# step to cost what a plain one does, this counts the arithmetic of the further tokens and the further
# experts that they go to.


def speculation_floor(
    shape: ModelShape, workload: ServingWorkload, on: Ceilings
) -> SpeculationFloor | None:
    """The workload's round, and the draft length that would be best; None without speculation."""
    settings = workload.speculation
    if settings is None:
        return None

    def step_s(model: ModelShape, n_new: int = 1) -> float:
        return step_floor(decode_step(model, workload, workload.contexts, n_new=n_new), on).floor_s

    def verification_cost(draft_len: int) -> float:
        return step_s(shape, draft_len + 1) / step_s(shape)

    def gain(draft_len: int) -> float:
        cost = verification_cost(draft_len)
        return speed_up(draft_len, rate, relative_cost, verification_cost=cost)

    draft, draft_len, rate = settings.draft, settings.draft_len, settings.acceptance_rate
    relative_cost = step_s(draft) / step_s(shape)
    best = best_draft_len(rate, relative_cost, verification_cost=verification_cost)
    return SpeculationFloor(
        draft_prefill_s=step_floor(prefill(draft, workload), on).floor_s,
        draft_step_s=step_s(draft),
        verification_s=step_s(shape, draft_len + 1),
        round_s=draft_len * step_s(draft) + step_s(shape, draft_len + 1),
        tokens_per_round=expected_tokens(draft_len, rate),
        relative_cost=relative_cost,
        verification_cost=verification_cost(draft_len),
        speed_up=gain(draft_len),
        ideal_speed_up=speed_up(draft_len, rate, relative_cost),
        best_draft_len=best,
        best_speed_up=gain(best),
    )


# Speculative decoding: tokens of a round, its speed-up, and the best draft length.
#
# After Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding" (2023).
# In a round the draft proposes γ tokens one after another; the target scores them in one step, keeps
# a first part of them and adds one token of its own. Each proposal is taken to be accepted with
# probability α independently of the others.

LONGEST_DRAFT = 32
"""Draft lengths up to this are tried; published ones lie below 16."""


def expected_tokens(draft_len: int, acceptance_rate: float) -> float:
    """Tokens of one round: (1 - α^(γ+1)) / (1 - α), equation 1; γ + 1 where α is 1."""
    # Summed as 1 + α + … + α^γ, which loses no digits near α = 1.
    return math.fsum(acceptance_rate**i for i in range(draft_len + 1))


def speed_up(
    draft_len: int,
    acceptance_rate: float,
    relative_cost: float,
    *,
    verification_cost: float = 1.0,
) -> float:
    """Time of plain decoding over that of speculative decoding, expected.

    With a verification cost of 1 this is theorem 3.8: (1 - α^(γ+1)) / ((1 - α)(γc + 1)).

    Args:
        draft_len: γ; 0 is plain decoding.
        acceptance_rate: α, from 0 to 1.
        relative_cost: time of a draft step over that of a target step: c.
        verification_cost: time of a target step over γ + 1 tokens over that of one over 1 token;
            above 1 where the target is bound by compute, or where more tokens go to more experts.
    """
    round_cost = draft_len * relative_cost + verification_cost
    return expected_tokens(draft_len, acceptance_rate) / round_cost


def best_draft_len(
    acceptance_rate: float,
    relative_cost: float,
    *,
    verification_cost: Callable[[int], float] = lambda _draft_len: 1.0,
    longest: int = LONGEST_DRAFT,
) -> int:
    """The draft length from 0 to `longest` of the highest speed-up, the shortest of equal ones.

    All are tried, for a verification that turns compute-bound may give more than one peak. With a
    verification cost of 1 it is above 0 exactly where α > c (corollary 3.9).
    """
    return max(
        range(longest + 1),
        key=lambda draft_len: speed_up(
            draft_len,
            acceptance_rate,
            relative_cost,
            verification_cost=verification_cost(draft_len),
        ),
    )
