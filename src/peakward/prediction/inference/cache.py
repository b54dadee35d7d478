"""The key-value cache: how much a position takes, and how many positions a token reaches.

A position holds, for every layer and key-value head, a key and a value of head_dim elements: for
Llama-2-7B in bf16, 2 · 32 · 32 · 128 · 2 = 524,288 bytes. In a sliding window no more than `window`
positions are held.
"""

from peakward.records.inference import CacheType
from peakward.records.model_shape import ModelShape

ELEMENT_BYTES: dict[CacheType, int] = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
SCALE_BYTES: dict[CacheType, int] = {"fp32": 0, "bf16": 0, "fp16": 0, "fp8": 0, "int8": 2}
"""Beside each key and each value vector of a head."""


def cache_bytes_per_token(shape: ModelShape, cache_type: CacheType) -> int:
    """Bytes of one position of one sequence, over all layers, scales included."""
    vector = shape.head_dim * ELEMENT_BYTES[cache_type] + SCALE_BYTES[cache_type]
    return 2 * shape.n_layers * shape.n_kv_heads * vector


def held_positions(shape: ModelShape, seq_len: int) -> int:
    """How many positions the cache keeps of a sequence of that length."""
    return min(seq_len, shape.window or seq_len)


def mean_reach(contexts: range, window: int | None) -> float:
    """Positions that a token attends to, itself included: the mean over contiguous contexts.

    Args:
        contexts: of each token, the positions up to itself: at least 1, in steps of 1.
        window: the most that a token attends to; None: all.
    """
    within = contexts if window is None else range(contexts.start, min(contexts.stop, window + 1))
    n_within = len(within)
    reached = n_within * (within[0] + within[-1]) / 2 if n_within else 0.0
    return (reached + (len(contexts) - n_within) * (window or 0)) / len(contexts)
