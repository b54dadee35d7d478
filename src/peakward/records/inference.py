"""Serving a model: prompts are prefilled, then tokens are decoded one step at a time."""

from typing import Literal

import msgspec

from peakward.records.model_shape import ModelShape
from peakward.records.prediction import Source

ComputeType = Literal["fp32", "tf32", "bf16", "fp16", "fp8"]
WeightType = Literal["fp32", "bf16", "fp16", "fp8", "int8", "int4"]
CacheType = Literal["fp32", "bf16", "fp16", "fp8", "int8"]


class WeightFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The stored format of weights. fp8, int8 and int4 apply to the matrices of attention and of the
    feed-forward networks; embeddings, head, norms, biases and routers stay in 16 bits."""

    type: WeightType = "bf16"
    group_size: int | None = None
    """Inputs of a quantised matrix that share one 16-bit scale. None: all inputs of an output share it."""
    zero_points: bool = False
    """Each scale has a zero point with as many bits as a weight (int8 and int4 only)."""


class Speculation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A draft model proposes tokens; the target model accepts a prefix of them in one step."""

    draft: ModelShape
    """The draft's shape. Its weights and cache have the target's types."""
    draft_len: int
    """Tokens proposed in a round, γ."""
    acceptance_rate: float
    """Expected share of proposed tokens that the target accepts, each independently: α, from 0 to 1."""


class ServingWorkload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A batch of requests of one length, served together from the first token to the last."""

    batch_size: int
    """Sequences."""
    prompt_len: int
    """Tokens of each prompt."""
    output_len: int
    """Tokens generated for each prompt, at least 2. The prefill gives the first, a decode step each other
    one."""
    weights: WeightFormat = WeightFormat()
    cache_type: CacheType = "bf16"
    """The cache's type. int8 has a 16-bit scale for each head and position, separately for keys and values.
    The other types have no scale (engines store fp8 with one static scale a layer, which takes no space to
    speak of)."""
    compute_type: ComputeType = "bf16"
    """The type of the multiplications, whatever type weights and cache are stored in."""
    speculation: Speculation | None = None

    @property
    def contexts(self) -> range:
        """The positions that the token of each decode step attends to, itself included."""
        return range(self.prompt_len + 1, self.prompt_len + self.output_len)

    @property
    def cached_len(self) -> int:
        """Positions of a sequence that are ever computed. The last token is never fed back."""
        return self.prompt_len + self.output_len - 1


class Cost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The work of one step for the whole batch."""

    flops: float
    """Model FLOPs."""
    bytes: float
    """Compulsory traffic: weights, cache and token ids; no activations."""
    flops_per_byte: float
    """Arithmetic intensity."""


class ServingMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The memory needed at the end of the longest sequence, without activations and workspace."""

    weights_bytes: int
    cache_bytes_per_token: int
    """The cache of one position of one sequence, over all layers."""
    cache_bytes: int
    """The cache of the whole batch at its full length, or at the window's length where that is shorter."""
    draft_bytes: int
    """Weights and cache of the draft model; 0 without speculation."""
    total_bytes: int


class ServingCost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cost of serving a workload, independent of the device."""

    model: ModelShape
    workload: ServingWorkload
    prefill: Cost
    """All prompts in one step."""
    decode: Cost
    """One token for every sequence, without speculation: the mean over the workload's decode steps."""
    memory: ServingMemory


class StepFloor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The minimum time of a step: the longer of its arithmetic and its traffic."""

    compute_s: float
    memory_s: float
    floor_s: float
    bound: Literal["compute", "memory"]


class SpeculationFloor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A round of speculative decoding: `draft_len` steps of the draft, then one of the target."""

    draft_prefill_s: float
    draft_step_s: float
    verification_s: float
    """One target step over draft_len + 1 tokens of every sequence."""
    round_s: float
    tokens_per_round: float
    """The expected number for each sequence."""
    relative_cost: float
    """A draft step over a plain decode step of the target, c."""
    verification_cost: float
    """The verification over a plain decode step of the target. The theorem takes it as 1."""
    speed_up: float
    """The speed-up over plain decoding with that verification. Below 1 speculation loses."""
    ideal_speed_up: float
    """The speed-up if verifying cost no more than decoding (Leviathan et al. 2023, theorem 3.8)."""
    best_draft_len: int
    """The draft length with the highest `speed_up` at this acceptance rate. 0: do not speculate."""
    best_speed_up: float


class Pace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Latencies for one user and throughputs of the whole batch. With speculation they are expected
    values."""

    time_to_first_token_s: float
    """The target's prefill."""
    time_per_output_token_s: float
    """The time of each token but the first, for one sequence."""
    request_s: float
    """The time from the prompt to the last token, including a draft's prefill."""
    prefill_tokens_per_s: float
    """Prompt tokens of the whole batch."""
    decode_tokens_per_s: float
    """Generated tokens of the whole batch while it decodes."""
    output_tokens_per_s: float
    """Generated tokens of the whole batch over `request_s`."""


class ServingFloor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The minimum times of a workload on a device, and so its maximum throughput."""

    cost: ServingCost
    device: str
    matmul_flops_per_s: float
    """The rate in the workload's compute type."""
    bytes_per_s: float
    source: Source
    """The source of the two ceilings, and so of every figure below."""
    prefill: StepFloor
    decode: StepFloor
    """The mean step without speculation."""
    speculation: SpeculationFloor | None
    pace: Pace
    memory_limit_bytes: int | None
    largest_batch_size: int | None
    """The largest batch within the memory limit; 0 where the weights alone exceed it. None without a
    limit."""
    compute_bound_batch_size: int | None
    """The smallest batch whose decode step, without speculation, is bound by compute. None where the cache
    keeps every batch bound by memory."""
