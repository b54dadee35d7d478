"""Bytes of a model's weights as they are stored for serving, and as a step reads them.

Quantisation is of weights alone: products multiply in the compute type. A quantised matrix holds
its elements in 8 or 4 bits and, for every output and every group of inputs, a 16-bit scale and,
where asked for, a zero point of as many bits as an element (packed, as AWQ and GPTQ store it: int4
in groups of 128 takes 4.15625 bits a weight). The last group of a row may be short. Quantised are
the query, key, value and output projections and the feed-forward matrices; embeddings, head, norms,
biases and routers stay in 16 bits, as those formats leave them.
"""

from peakward.prediction.parameters import embedding_parameters, n_parameters
from peakward.prediction.traffic import looked_up, touched_experts
from peakward.records.inference import WeightFormat, WeightType
from peakward.records.model_shape import ModelShape

BITS: dict[WeightType, int] = {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "int4": 4}
QUANTISED: tuple[WeightType, ...] = ("fp8", "int8", "int4")
SCALE_BITS = 16

Matrix = tuple[int, int]
"""Inputs and outputs."""


def weight_bytes(shape: ModelShape, stored: WeightFormat) -> int:
    """Bytes of all weights, each counted once; every expert is held."""
    kept = (n_parameters(shape) - _block_elements(shape)) * _kept_bytes(stored)
    return kept + shape.n_layers * (
        _sum_bytes(_shared_matrices(shape), stored)
        + shape.n_experts * _sum_bytes(_expert_matrices(shape), stored)
    )


def read_bytes(
    shape: ModelShape, stored: WeightFormat, *, n_tokens: int, n_positions: int
) -> float:
    """Bytes that one step over `n_tokens` tokens at `n_positions` positions must read.

    Each weight once; of experts those that a token is expected to go to, and of tables that are
    only looked up in the rows that are touched, both as `prediction.traffic` counts them.
    """
    tied_table = shape.vocab_size * shape.d_model if shape.tied_head else 0
    kept = n_parameters(shape) - embedding_parameters(shape) - _block_elements(shape) + tied_table
    rows = looked_up(shape, n_tokens, n_positions)
    experts = touched_experts(shape, n_tokens) * _sum_bytes(_expert_matrices(shape), stored)
    blocks = shape.n_layers * (_sum_bytes(_shared_matrices(shape), stored) + experts)
    return (kept + rows) * _kept_bytes(stored) + blocks


def matrix_bytes(matrix: Matrix, stored: WeightFormat) -> int:
    """One matrix of a block with its scales and zero points, in whole bytes."""
    inputs, outputs = matrix
    bits = BITS[stored.type]
    row = inputs * bits
    if stored.type in QUANTISED:
        n_groups = -(-inputs // (stored.group_size or inputs))
        row += n_groups * (SCALE_BITS + (bits if stored.zero_points else 0))
    return -(-outputs * row // 8)


def _sum_bytes(matrices: tuple[Matrix, ...], stored: WeightFormat) -> int:
    return sum(matrix_bytes(each, stored) for each in matrices)


def _kept_bytes(stored: WeightFormat) -> int:
    """Of an element that is never quantised."""
    return 4 if stored.type == "fp32" else 2


def _shared_matrices(shape: ModelShape) -> tuple[Matrix, ...]:
    """One block's query, key, value and output projections."""
    query, key = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    return ((shape.d_model, query), *[(shape.d_model, key)] * 2, (query, shape.d_model))


def _expert_matrices(shape: ModelShape) -> tuple[Matrix, ...]:
    """One feed-forward network's."""
    up = (shape.d_model, shape.d_ff)
    return (*[up] * (2 if shape.gated else 1), (shape.d_ff, shape.d_model))


def _block_elements(shape: ModelShape) -> int:
    """Elements of all blocks' matrices that a format may quantise."""
    shared = sum(inputs * outputs for inputs, outputs in _shared_matrices(shape))
    return shape.n_layers * (shared + shape.n_experts * shape.expert_parameters)
