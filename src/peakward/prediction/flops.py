"""Model FLOPs: what the maths needs, however it is carried out.

Conventions, which every figure derived from these inherits:

- 2·m·n·k for every matrix product, the output head at every position included. Nothing else
  counts: no norm, activation, softmax, embedding look-up or optimiser arithmetic.
- Of a mixture of experts each token counts those that it goes through, and the router, which is
  a matrix product too.
- Causal attention counts as half: each of its two products is 2·S²·head_dim per head without a
  mask, S²·head_dim with it, so a query attends to S/2 keys on average. (Counted token by token,
  itself included, it would be (S + 1)/2.) In a window of W < S the pairs are S·W - W²/2: W keys
  for each query but the first W, which have W/2 on average. At W = S that is S²/2 again.
- With a key-value cache the head counts only where a token is drawn from it: at the last position
  of each prompt, and of each token decoded. A token that is decoded attends to all that lie in its
  reach, itself included, exactly.
- Backward is twice forward: each product has two operands to differentiate. So training is three
  times forward. Recomputation (by checkpointing, or inside flash attention) is never counted.
"""

from collections.abc import Callable

from peakward.prediction.parameters import active_block_matmul_parameters
from peakward.records.case import (
    Case,
    CollectivesCase,
    LayoutCase,
    MicroCase,
    ModelCase,
    ModuleCase,
    NumericsCase,
    OperatorCase,
    OperatorPass,
    Pass,
    QualityCase,
    SpeculationCase,
    StepCase,
    Workload,
)
from peakward.records.measurement import Phase
from peakward.records.model_shape import ModelShape

FORWARDS: dict[Phase, int] = {"forward": 1, "backward": 2, "optimizer": 0}
"""Model FLOPs of a phase over those of the forward pass."""


def forward_flops(shape: ModelShape, batch_size: int, seq_len: int) -> float:
    """Model FLOPs of one forward pass over (batch_size, seq_len) tokens."""
    return _blocks(shape, batch_size, seq_len) + head_flops(shape, n_tokens=batch_size * seq_len)


def prefill_flops(shape: ModelShape, batch_size: int, seq_len: int) -> float:
    """Model FLOPs of prompts (batch_size, seq_len), the head at the last position of each."""
    return _blocks(shape, batch_size, seq_len) + head_flops(shape, n_tokens=batch_size)


def decode_flops(shape: ModelShape, batch_size: int, context_len: int) -> float:
    """Model FLOPs of one token for each of batch_size sequences that are `context_len` long with it."""
    n_pairs = batch_size * min(context_len, shape.window or context_len)
    blocks = blocks_flops(shape, n_tokens=batch_size, n_pairs=n_pairs)
    return blocks + head_flops(shape, n_tokens=batch_size)


def step_flops(case: Case) -> float | None:
    """Model FLOPs of one step, over all its micro-batches; of varying lengths the mean.

    Returns:
        None for a `StepCase` and a `ModuleCase`, whose maths is not known, a `MicroCase`, whose measurement
        tells, a `SpeculationCase`, whose steps differ, a `QualityCase` or `NumericsCase`, which asks for no
        time, and a `CollectivesCase`, which computes nothing.
    """
    if isinstance(
        case,
        StepCase
        | MicroCase
        | ModuleCase
        | QualityCase
        | NumericsCase
        | SpeculationCase
        | CollectivesCase,
    ):
        return None
    if isinstance(case, LayoutCase):
        alone = step_flops(case.of_one_rank)
        return None if alone is None else case.layout.n_ranks * alone
    if isinstance(case, OperatorCase):
        pairs = attended_pairs(case.seq_len, window=None)
        forward = 4.0 * case.batch_size * case.n_heads * case.head_dim * pairs
        return forward * sum(FORWARDS[phase] for phase in OPERATOR_PHASES[case.pass_])
    return sum(phase_flops(case).values())


def phase_flops(case: ModelCase) -> dict[Phase, float]:
    """`step_flops` by phase, in the order in which they run."""
    workload = case.workload
    micro_batch = {"prefill": prefill_flops, "decode": decode_flops}.get(
        workload.pass_, forward_flops
    )
    forward = workload.accumulate * mean_over_lengths(
        workload, lambda seq_len: micro_batch(case.model, workload.batch_size, seq_len)
    )
    return {phase: FORWARDS[phase] * forward for phase in PHASES[workload.pass_]}


def recomputed_flops(case: ModelCase) -> float:
    """FLOPs of the matrix products that checkpointing runs again in backward, beyond the model's.

    `every-block` runs each block's forward once more; so does `sqrt`, which keeps only the input
    of each segment of ceil(√n_layers) blocks and runs the segment again. `selective` keeps the
    outputs of matrix products and of attention and recomputes the rest, which counts as none. The
    head is never recomputed. Blocks count whole: torch stops a recomputation once the last saved
    tensor is back, and so may spare the last product of each segment.
    """
    workload = case.workload
    recomputes = case.configuration.checkpointing in ("sqrt", "every-block")
    if not (workload.trains and recomputes):
        return 0.0
    return workload.accumulate * mean_over_lengths(
        workload, lambda seq_len: _blocks(case.model, workload.batch_size, seq_len)
    )


def attended_pairs(seq_len: int, *, window: int | None) -> float:
    """(query, key) pairs of causal attention over one sequence, by the convention above."""
    reach = min(window or seq_len, seq_len)
    return seq_len * reach - reach**2 / 2


def blocks_flops(shape: ModelShape, *, n_tokens: int, n_pairs: float) -> float:
    """Model FLOPs of all blocks for `n_tokens` tokens that attend in `n_pairs` (query, key) pairs."""
    matmuls = 2.0 * n_tokens * active_block_matmul_parameters(shape)
    # Scores and weighted values: each 2 · head_dim per pair and head.
    attention = 4.0 * shape.n_heads * shape.head_dim * n_pairs
    return shape.n_layers * (matmuls + attention)


def head_flops(shape: ModelShape, *, n_tokens: int) -> float:
    """Model FLOPs of the output head at `n_tokens` positions."""
    return 2.0 * n_tokens * shape.vocab_size * shape.d_model


def _blocks(shape: ModelShape, batch_size: int, seq_len: int) -> float:
    pairs = batch_size * attended_pairs(seq_len, window=shape.window)
    return blocks_flops(shape, n_tokens=batch_size * seq_len, n_pairs=pairs)


# The parts of a step: the phases of each pass, and the lengths that its steps cycle through.

PHASES: dict[Pass, tuple[Phase, ...]] = {
    "forward": ("forward",),
    "forward_backward": ("forward", "backward"),
    "train_step": ("forward", "backward", "optimizer"),
    "prefill": ("forward",),
    "decode": ("forward",),
}
"""In the order in which they run."""
OPERATOR_PHASES: dict[OperatorPass, tuple[Phase, ...]] = {
    "forward": ("forward",),
    "backward": ("backward",),
    "forward_backward": ("forward", "backward"),
}


def mean_over_lengths(workload: Workload, cost: Callable[[int], float]) -> float:
    """`cost(seq_len)` averaged over a cycle of the workload's lengths.

    Padding is not what the maths needs, so a batch costs what its own length does, padded or not.
    """
    lengths = workload.varying_seq_lens or (workload.seq_len,)
    return sum(cost(length) for length in lengths) / len(lengths)
