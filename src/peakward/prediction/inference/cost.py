"""FLOPs, compulsory traffic and memory of serving a workload, on any device.

FLOPs are model FLOPs (`prediction.flops`): in the prefill causal attention counts as half; a decode
step counts the positions that its token attends to, itself included, exactly. The head is computed
where a token is drawn from it: at the last position of a prompt and at every position of a decode
step.

Traffic is what must cross the memory bus: weights once a step, in the type they are stored in
(`weights`); the cache of all earlier positions in reach, read once a step, and the new positions
written; token ids. A prefill writes the cache that it leaves behind and reads none. Not counted, as
in `prediction.traffic`: activations and logits, which can stay on the chip.

Quantisation is of weights alone: products multiply in the compute type. Quantised are the query, key,
value and output projections and the feed-forward matrices; embeddings, head, norms, biases and
routers stay in 16 bits, as those formats leave them.

Memory is that of weights and cache. Activations, workspace, fragmentation and the device's context are
not counted, so that a real engine fits less.
"""

from peakward.prediction.flops import blocks_flops, head_flops, prefill_flops
from peakward.prediction.inference.workload import validate
from peakward.prediction.parameters import embedding_parameters, n_parameters
from peakward.prediction.traffic import (
    TOKEN_ID_BYTES,
    block_elements,
    cache_bytes_per_token,
    expert_matrices,
    held_positions,
    looked_up,
    mean_reach,
    shared_matrices,
    sum_bytes,
    touched_experts,
)
from peakward.records.inference import (
    Cost,
    ServingCost,
    ServingMemory,
    ServingWorkload,
    WeightFormat,
)
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


def weight_bytes(shape: ModelShape, stored: WeightFormat) -> int:
    """Bytes of all weights, each counted once; every expert is held."""
    kept = (n_parameters(shape) - block_elements(shape)) * _kept_bytes(stored)
    return kept + shape.n_layers * (
        sum_bytes(shared_matrices(shape), stored)
        + shape.n_experts * sum_bytes(expert_matrices(shape), stored)
    )


def read_bytes(
    shape: ModelShape, stored: WeightFormat, *, n_tokens: int, n_positions: int
) -> float:
    """Bytes that one step over `n_tokens` tokens at `n_positions` positions must read.

    Each weight once; of experts those that a token is expected to go to, and of tables that are
    only looked up in the rows that are touched, both as `prediction.traffic` counts them.
    """
    tied_table = shape.vocab_size * shape.d_model if shape.tied_head else 0
    kept = n_parameters(shape) - embedding_parameters(shape) - block_elements(shape) + tied_table
    rows = looked_up(shape, n_tokens, n_positions)
    experts = touched_experts(shape, n_tokens) * sum_bytes(expert_matrices(shape), stored)
    blocks = shape.n_layers * (sum_bytes(shared_matrices(shape), stored) + experts)
    return (kept + rows) * _kept_bytes(stored) + blocks


def _kept_bytes(stored: WeightFormat) -> int:
    """Bytes of an element that is never quantised."""
    return 4 if stored.type == "fp32" else 2


def serving_memory(shape: ModelShape, workload: ServingWorkload) -> ServingMemory:
    """Bytes held when every sequence of the batch has its full length."""
    weights = weight_bytes(shape, workload.weights)
    cache = workload.batch_size * _sequence_bytes(shape, workload)
    draft = 0
    if workload.speculation is not None:
        model = workload.speculation.draft
        draft = weight_bytes(model, workload.weights)
        draft += workload.batch_size * _sequence_bytes(model, workload)
    return ServingMemory(
        weights_bytes=weights,
        cache_bytes_per_token=cache_bytes_per_token(shape, workload.cache_type),
        cache_bytes=cache,
        draft_bytes=draft,
        total_bytes=weights + cache + draft,
    )


def largest_batch_size(shape: ModelShape, workload: ServingWorkload, limit_bytes: int) -> int:
    """The most sequences whose cache fits beside the weights, whatever the workload's own batch.

    0 where not even the weights and one sequence fit.
    """
    models = [shape]
    if workload.speculation is not None:
        models.append(workload.speculation.draft)
    weights = sum(weight_bytes(each, workload.weights) for each in models)
    sequence = sum(_sequence_bytes(each, workload) for each in models)
    return max(limit_bytes - weights, 0) // sequence


def _sequence_bytes(shape: ModelShape, workload: ServingWorkload) -> int:
    per_token = cache_bytes_per_token(shape, workload.cache_type)
    return held_positions(shape, workload.cached_len) * per_token
