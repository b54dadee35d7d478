"""The least time of a round of speculative decoding on a device, and what it gains there.

A round is `draft_len` steps of the draft and one step of the target over draft_len + 1 tokens of
every sequence, each at the contexts of plain decoding. Unlike the theorem, which takes the target's
step to cost what a plain one does, this counts the arithmetic of the further tokens and the further
experts that they go to.
"""

from peakward.prediction.ceilings import Ceilings
from peakward.prediction.inference.cost import decode_step, prefill
from peakward.prediction.inference.speculation import best_draft_len, expected_tokens, speed_up
from peakward.prediction.inference.step_floor import step_floor
from peakward.records.inference import ServingWorkload, SpeculationFloor
from peakward.records.model_shape import ModelShape


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
