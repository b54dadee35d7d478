"""The memory of serving, weights and cache, and the largest batch that a limit leaves room for.

Activations, workspace, fragmentation and the device's context are not counted, so that a real
engine fits less.
"""

from peakward.prediction.inference.cache import cache_bytes_per_token, held_positions
from peakward.prediction.inference.weights import weight_bytes
from peakward.records.inference import ServingMemory, ServingWorkload
from peakward.records.model_shape import ModelShape


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
