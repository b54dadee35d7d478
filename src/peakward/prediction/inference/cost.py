"""FLOPs, compulsory traffic and memory of serving a workload, on any device.

FLOPs are model FLOPs (`prediction.flops`): in the prefill causal attention counts as half; a decode
step counts the positions that its token attends to, itself included, exactly. The head is computed
where a token is drawn from it: at the last position of a prompt and at every position of a decode
step.

Traffic is what must cross the memory bus: weights once a step, in the type they are stored in
(`weights`); the cache of all earlier positions in reach, read once a step, and the new positions
written; token ids. A prefill writes the cache that it leaves behind and reads none. Not counted, as
in `prediction.traffic`: activations and logits, which can stay on the chip.
"""

from peakward.prediction.flops import blocks_flops, head_flops, prefill_flops
from peakward.prediction.inference.cache import (
    cache_bytes_per_token,
    held_positions,
    mean_reach,
)
from peakward.prediction.inference.memory import serving_memory
from peakward.prediction.inference.validate import validate
from peakward.prediction.inference.weights import read_bytes
from peakward.prediction.traffic import TOKEN_ID_BYTES
from peakward.records.inference import Cost, ServingCost, ServingWorkload
from peakward.records.model_shape import ModelShape


def serving_cost(shape: ModelShape, workload: ServingWorkload) -> ServingCost:
    """Costs of the workload: its prefill, its mean decode step and its memory.

    Raises:
        PeakwardError: a shape or a workload that cannot be served.
    """
    validate(shape, workload)
    return ServingCost(
        model=shape,
        workload=workload,
        prefill=prefill(shape, workload),
        decode=decode_step(shape, workload, workload.contexts),
        memory=serving_memory(shape, workload),
    )


def prefill(shape: ModelShape, workload: ServingWorkload) -> Cost:
    """All prompts of the batch in one step."""
    batch_size, prompt_len = workload.batch_size, workload.prompt_len
    n_tokens = batch_size * prompt_len
    written = batch_size * held_positions(shape, prompt_len)
    return _cost(
        shape,
        workload,
        flops=prefill_flops(shape, batch_size, prompt_len),
        n_tokens=n_tokens,
        n_positions=prompt_len,
        cached=written,
    )


def decode_step(
    shape: ModelShape, workload: ServingWorkload, contexts: range, *, n_new: int = 1
) -> Cost:
    """One step over `n_new` successive tokens of every sequence: the mean over contexts.

    The cost is linear in the positions in reach, so their mean gives it.

    Args:
        contexts: in each step, the positions that the first new token attends to, itself included;
            range(n, n + 1) is the step at context length n.
        n_new: 1, or draft_len + 1 where the target verifies a draft.
    """
    batch_size = workload.batch_size
    n_tokens = batch_size * n_new
    reaches = [
        mean_reach(range(contexts.start + i, contexts.stop + i), shape.window) for i in range(n_new)
    ]
    return _cost(
        shape,
        workload,
        flops=blocks_flops(shape, n_tokens=n_tokens, n_pairs=batch_size * sum(reaches))
        + head_flops(shape, n_tokens=n_tokens),
        n_tokens=n_tokens,
        n_positions=n_new,
        # The first new token reaches itself, which nobody has cached before.
        cached=batch_size * (reaches[0] - 1 + n_new),
    )


def _cost(
    shape: ModelShape,
    workload: ServingWorkload,
    *,
    flops: float,
    n_tokens: int,
    n_positions: int,
    cached: float,
) -> Cost:
    """`cached` counts the positions read and written, of all sequences together."""
    traffic = (
        read_bytes(shape, workload.weights, n_tokens=n_tokens, n_positions=n_positions)
        + cached * cache_bytes_per_token(shape, workload.cache_type)
        + TOKEN_ID_BYTES * n_tokens
    )
    return Cost(flops=flops, bytes=traffic, flops_per_byte=flops / traffic)
