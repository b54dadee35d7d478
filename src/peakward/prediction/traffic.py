"""Compulsory traffic: bytes that must cross the memory bus in each phase, however it is done.

Counted, each as often as the workload makes it move:

- weights (every matrix, bias and norm, the head included), in the type they are stored in, quantised
  ones with their scales: read once by the forward and once by the backward of every micro-batch;
- of a block's experts, only those that a token goes to: of n tokens that each choose k of E experts
  uniformly, none goes to a given one with probability (1 - k/E)ⁿ. A router with favourites leaves
  out more, so that few tokens can beat this floor;
- rows of the embedding tables, only those that are looked up: of uniform random ids over V, n
  draws touch V·(1 - (1 - 1/V)ⁿ) distinct rows. A tied table is a weight, read whole by the head;
- gradients, in the parameters' type: written by the first micro-batch's backward, read and written
  by each later one's. Of an untied table and of experts, again what was touched;
- AdamW: reads parameter, gradient and two moments, writes parameter and two moments, of every
  parameter, all in the parameters' type but moments that the optimiser holds in fewer bits;
- keys and values in a cache, in the type that attention computes in, or in a byte an element with its
  scales (a decode step that keeps none could have kept them, and has the same floor): of `prefill` the
  positions of each prompt written that later tokens may attend to; of `decode` those read that the new token
  attends to, but for itself, which is written;
- token ids, 8 bytes each, read once per micro-batch.

Not counted: activations, logits, casts, scales of a scaled loss, zeroing. They can stay on the chip
or be computed again, so they are no part of a floor. Counted although they might stay: weights,
gradients and moments that fit in the last cache; a model as small as that can beat its floor.
"""

from peakward.levers import kv_cache, optimizer
from peakward.levers.weights import QUANTISED
from peakward.prediction.flops import PHASES, mean_over_lengths
from peakward.prediction.parameters import embedding_parameters, n_parameters, n_position_rows
from peakward.records.case import ModelCase, Precision
from peakward.records.inference import CacheType, WeightFormat, WeightType
from peakward.records.measurement import Phase
from peakward.records.model_shape import ModelShape

TOKEN_ID_BYTES = 8
CACHE_TYPES: dict[Precision, CacheType] = {
    "fp32": "fp32",
    "tf32": "fp32",
    "bf16-mixed": "bf16",
    "fp16-mixed": "fp16",
    "bf16": "bf16",
    "fp8": "bf16",
}


def compulsory_bytes(case: ModelCase) -> dict[Phase, float]:
    """Compulsory traffic of one step by phase, over its micro-batches; of varying lengths the mean."""
    bytes_by_phase: dict[Phase, float] = {
        "forward": _forward_bytes(case),
        "backward": _backward_bytes(case),
        "optimizer": float(_optimizer_bytes(case)),
    }
    return {phase: bytes_by_phase[phase] for phase in PHASES[case.workload.pass_]}


def _optimizer_bytes(case: ModelCase) -> int:
    """Parameter and moments read and written, the gradient read."""
    n, n_bytes = n_parameters(case.model), parameter_bytes(case)
    moment = sum(optimizer.moment_sizes(case.configuration.optimizer, n, n_bytes))
    return 3 * n * n_bytes + 4 * moment


def parameter_bytes(case: ModelCase) -> int:
    """Bytes of one stored parameter that is not quantised: 2 under `bf16`, else 4, for autocast and fp8
    keep fp32 ones."""
    return 2 if case.configuration.precision == "bf16" else 4


def quantised_elements(case: ModelCase) -> int:
    """Elements of the weights that are stored quantised."""
    return block_elements(case.model) if case.configuration.weights in QUANTISED else 0


def quantised_bytes(case: ModelCase) -> int:
    """Bytes of the quantised weights with their scales; no mixture of experts has any."""
    shape, stored = case.model, QUANTISED.get(case.configuration.weights)
    if stored is None:
        return 0
    matrices = (*shared_matrices(shape), *expert_matrices(shape))
    return shape.n_layers * sum_bytes(matrices, stored.format)


def _forward_bytes(case: ModelCase) -> float:
    workload, shape = case.workload, case.model

    def micro_batch(seq_len: int) -> float:
        n_positions = 1 if workload.pass_ == "decode" else seq_len
        n_tokens = workload.batch_size * n_positions
        read = _weights(shape, n_tokens) + looked_up(shape, n_tokens, n_positions)
        read -= quantised_elements(case)
        weights = read * parameter_bytes(case) + quantised_bytes(case)
        return weights + cached_bytes(case) + TOKEN_ID_BYTES * n_tokens

    return workload.accumulate * mean_over_lengths(workload, micro_batch)


def cached_bytes(case: ModelCase) -> float:
    """Bytes of the cache that a step writes, or reads and writes; 0 of a pass without one."""
    workload, shape = case.workload, case.model
    if not workload.caches:
        return 0.0
    n_positions = workload.batch_size * held_positions(shape, workload.seq_len)
    return n_positions * cache_bytes_per_token(shape, cache_type(case))


def cache_type(case: ModelCase) -> CacheType:
    """The type that keys and values are kept in: one byte where the case says so, else the type that it
    computes in, but fp8's 16 bits."""
    kept = case.configuration.kv_cache
    return kept if kept in ("int8", "fp8") else CACHE_TYPES[case.configuration.precision]


def _backward_bytes(case: ModelCase) -> float:
    workload, shape = case.workload, case.model
    gradient_accesses = 2 * workload.accumulate - 1

    def step(seq_len: int) -> float:
        n_tokens = workload.batch_size * seq_len
        weights = _weights(shape, n_tokens)
        gradients = weights + looked_up(shape, n_tokens, seq_len)
        elements = workload.accumulate * weights + gradient_accesses * gradients
        return elements * parameter_bytes(case)

    return mean_over_lengths(workload, step)


def _weights(shape: ModelShape, n_tokens: int) -> float:
    """Parameters that take part in the arithmetic of n_tokens: all but tables only looked up in and
    experts that no token goes to."""
    tied_table = shape.vocab_size * shape.d_model if shape.tied_head else 0
    untouched = shape.n_experts - touched_experts(shape, n_tokens)
    left_out = shape.n_layers * untouched * shape.expert_parameters
    return n_parameters(shape) - embedding_parameters(shape) + tied_table - left_out


def touched_experts(shape: ModelShape, n_tokens: int) -> float:
    """Experts of one block that any of n_tokens is expected to go to; 1 in a dense block."""
    idle_share = 1 - shape.n_active_experts / shape.n_experts
    return shape.n_experts * (1 - idle_share**n_tokens)


def looked_up(shape: ModelShape, n_tokens: int, n_positions: int) -> float:
    """Elements of the touched rows of the tables that are looked up in: of tokens, unless the head
    reads that table whole, and of learned positions, of which the tokens stand at `n_positions`."""
    vocab = shape.vocab_size
    distinct = vocab * (1 - (1 - 1 / vocab) ** n_tokens)
    token_rows = 0.0 if shape.tied_head else distinct
    position_rows = min(n_positions, n_position_rows(shape))
    return (token_rows + position_rows) * shape.d_model


# A block's matrices, and their bytes as they are stored, quantised or not.
#
# A quantised matrix holds its elements in 8 or 4 bits and, for every output and every group of inputs, a
# 16-bit scale and, where asked for, a zero point of as many bits as an element (packed, as AWQ and GPTQ
# store it: int4 in groups of 128 takes 4.15625 bits a weight). The last group of a row may be short.

BITS: dict[WeightType, int] = {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "int4": 4}
QUANTISED_TYPES: tuple[WeightType, ...] = ("fp8", "int8", "int4")
SCALE_BITS = 16

Matrix = tuple[int, int]
"""Inputs and outputs."""


def matrix_bytes(matrix: Matrix, stored: WeightFormat) -> int:
    """One matrix of a block with its scales and zero points, in whole bytes."""
    inputs, outputs = matrix
    bits = BITS[stored.type]
    row = inputs * bits
    if stored.type in QUANTISED_TYPES:
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


# The key-value cache: how much a position takes, and how many positions a token reaches.
#
# A position holds, for every layer and key-value head, a key and a value of head_dim elements: for
# Llama-2-7B in bf16, 2 · 32 · 32 · 128 · 2 = 524,288 bytes. In a sliding window no more than `window`
# positions are held.

ELEMENT_BYTES: dict[CacheType, int] = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
SCALED: tuple[CacheType, ...] = ("fp8", "int8")
"""Types with a scale beside each key and each value vector of a head."""


def cache_bytes_per_token(shape: ModelShape, cache_type: CacheType) -> int:
    """Bytes of one position of one sequence, over all layers, scales included."""
    scale = kv_cache.SCALE_BYTES if cache_type in SCALED else 0
    vector = shape.head_dim * ELEMENT_BYTES[cache_type] + scale
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
