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

import itertools
from collections.abc import Iterator

import msgspec

from peakward.models import presets
from peakward.prediction.flops import blocks_flops, head_flops, prefill_flops
from peakward.prediction.parameters import embedding_parameters, n_parameters
from peakward.prediction.traffic import (
    QUANTISED_TYPES,
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
from peakward.records.errors import PeakwardError
from peakward.records.inference import (
    Cost,
    ServingCost,
    ServingMemory,
    ServingWorkload,
    Speculation,
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


# Bytes of a model's weights as they are stored for serving, and as a step reads them.
#
# Quantisation is of weights alone: products multiply in the compute type. Quantised are the
# query, key, value and output projections and the feed-forward matrices; embeddings, head, norms,
# biases and routers stay in 16 bits, as those formats leave them.


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


# The memory of serving, weights and cache, and the largest batch that a limit leaves room for.
#
# Activations, workspace, fragmentation and the device's context are not counted, so that a real engine
# fits less.


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


# The conditions that a serving workload must satisfy to have a cost.


def validate(shape: ModelShape, workload: ServingWorkload) -> None:
    """Refuse a workload that the shape cannot serve.

    Raises:
        PeakwardError: the first thing wrong with either, and what to do.
    """
    presets.validate(shape)
    try:
        msgspec.convert(msgspec.to_builtins(workload), ServingWorkload)
    except msgspec.ValidationError as error:
        raise PeakwardError(f"expected a serving workload, got one that is not: {error}") from error
    faults = itertools.chain(
        _length_faults(shape, workload),
        _format_faults(workload.weights),
        _speculation_faults(shape, workload),
    )
    if (fault := next(faults, None)) is not None:
        raise PeakwardError(fault)


def _length_faults(shape: ModelShape, workload: ServingWorkload) -> Iterator[str]:
    for field in ("batch_size", "prompt_len"):
        if (size := getattr(workload, field)) < 1:
            yield f"expected {field} of at least 1, got {size}: give a positive size"
    if workload.output_len < 2:
        yield (
            f"expected output_len of at least 2, got {workload.output_len}: the prefill gives the "
            "first token, so that a decode step needs a second"
        )
    yield from _too_long(shape, workload)


def _too_long(shape: ModelShape, workload: ServingWorkload) -> Iterator[str]:
    whole = workload.prompt_len + workload.output_len
    if whole > shape.max_seq_len:
        yield (
            f"expected prompt_len + output_len of at most {shape.max_seq_len:,} for the model "
            f"{shape.name}, got {whole:,}: shorten either, or replace max_seq_len in the shape"
        )


def _format_faults(stored: WeightFormat) -> Iterator[str]:
    if stored.group_size is not None and stored.type not in QUANTISED_TYPES:
        yield (
            f"expected no group_size for {stored.type} weights, got {stored.group_size}: "
            "only quantised weights have scales"
        )
    if stored.group_size is not None and stored.group_size < 1:
        yield f"expected a group_size of at least 1, got {stored.group_size}: 128 is customary"
    if stored.zero_points and stored.type not in ("int8", "int4"):
        yield (
            f"expected no zero_points for {stored.type} weights, got some: "
            "only int8 and int4 have them"
        )


def _speculation_faults(shape: ModelShape, workload: ServingWorkload) -> Iterator[str]:
    speculation: Speculation | None = workload.speculation
    if speculation is None:
        return
    presets.validate(speculation.draft)
    if speculation.draft_len < 1:
        yield (
            f"expected a draft_len of at least 1, got {speculation.draft_len}: "
            "leave speculation out to decode without a draft"
        )
    if not 0 <= speculation.acceptance_rate <= 1:
        yield (
            f"expected an acceptance_rate from 0 to 1, got {speculation.acceptance_rate}: "
            "it is the share of proposed tokens that are accepted"
        )
    if speculation.draft.vocab_size != shape.vocab_size:
        yield (
            f"expected a draft of the target's vocabulary of {shape.vocab_size:,}, got "
            f"{speculation.draft.vocab_size:,}: the target must be able to score its tokens"
        )
    yield from _too_long(speculation.draft, workload)
