"""A block's matrices, and their bytes as they are stored, quantised or not.

A quantised matrix holds its elements in 8 or 4 bits and, for every output and every group of inputs, a
16-bit scale and, where asked for, a zero point of as many bits as an element (packed, as AWQ and GPTQ store
it: int4 in groups of 128 takes 4.15625 bits a weight). The last group of a row may be short.
"""

from peakward.records.inference import WeightFormat, WeightType
from peakward.records.model_shape import ModelShape

BITS: dict[WeightType, int] = {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "int4": 4}
QUANTISED: tuple[WeightType, ...] = ("fp8", "int8", "int4")
SCALE_BITS = 16

Matrix = tuple[int, int]
"""Inputs and outputs."""


def matrix_bytes(matrix: Matrix, stored: WeightFormat) -> int:
    """One matrix of a block with its scales and zero points, in whole bytes."""
    inputs, outputs = matrix
    bits = BITS[stored.type]
    row = inputs * bits
    if stored.type in QUANTISED:
        n_groups = -(-inputs // (stored.group_size or inputs))
        row += n_groups * (SCALE_BITS + (bits if stored.zero_points else 0))
    return -(-outputs * row // 8)


def sum_bytes(matrices: tuple[Matrix, ...], stored: WeightFormat) -> int:
    """Bytes of all the matrices."""
    return sum(matrix_bytes(each, stored) for each in matrices)


def shared_matrices(shape: ModelShape) -> tuple[Matrix, ...]:
    """One block's query, key, value and output projections."""
    query, key = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    return ((shape.d_model, query), *[(shape.d_model, key)] * 2, (query, shape.d_model))


def expert_matrices(shape: ModelShape) -> tuple[Matrix, ...]:
    """One feed-forward network's."""
    up = (shape.d_model, shape.d_ff)
    return (*[up] * (2 if shape.gated else 1), (shape.d_ff, shape.d_model))


def block_elements(shape: ModelShape) -> int:
    """Elements of all blocks' matrices that a format may quantise."""
    shared = sum(inputs * outputs for inputs, outputs in shared_matrices(shape))
    return shape.n_layers * (shared + shape.n_experts * shape.expert_parameters)
