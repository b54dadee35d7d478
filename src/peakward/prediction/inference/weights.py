"""Bytes of a model's weights as they are stored for serving, and as a step reads them.

Quantisation is of weights alone: products multiply in the compute type. Quantised are (`matrices`) the
query, key, value and output projections and the feed-forward matrices; embeddings, head, norms,
biases and routers stay in 16 bits, as those formats leave them.
"""

from peakward.prediction.matrices import (
    block_elements,
    expert_matrices,
    shared_matrices,
    sum_bytes,
)
from peakward.prediction.parameters import embedding_parameters, n_parameters
from peakward.prediction.traffic import looked_up, touched_experts
from peakward.records.inference import WeightFormat
from peakward.records.model_shape import ModelShape


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
