"""How the ranks of a job share a training step, and the collectives that they call."""

from typing import Literal

import msgspec

from peakward.records.errors import PeakwardError
from peakward.records.model_shape import ModelShape, Positions

Collective = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "point-to-point"]
DataStrategy = Literal["ddp", "overlapped", "zero1", "zero2", "fsdp", "flat", "per-parameter"]
"""How ranks with batches of their own share parameters, gradients and optimiser state.

`ddp` is torch's DistributedDataParallel. `overlapped` reduces gradients where they lie while the backward
pass runs, without buckets that they are copied to. `zero1` is `ddp` with a sharded optimiser. `zero2` shards
gradients and optimiser state, `fsdp` parameters too (torch's `fully_shard`, without and with resharding after
the forward pass). `flat` and `per-parameter` reduce after the backward pass, all gradients at once or one
after another: what a hand-written loop does first."""
Schedule = Literal["gpipe", "1f1b", "interleaved"]
"""The order of micro-batches in a pipeline: all forward passes first (Huang et al. 2019), one forward and one
backward in turn (Narayanan et al. 2019), or that with several stages a rank (Narayanan et al. 2021)."""
Wrap = Literal["block", "whole"]
SHARDING: tuple[DataStrategy, ...] = ("zero2", "fsdp")
"""Strategies of `fully_shard`."""
BUCKETED: tuple[DataStrategy, ...] = ("ddp", "zero1")
"""Strategies of DistributedDataParallel."""
CAPTURABLE: tuple[DataStrategy, ...] = ("overlapped", *SHARDING)
"""Those whose step can be replayed as one CUDA graph: torch's DistributedDataParallel counts its buckets on
the host."""


EXPERT_DATA: tuple[DataStrategy, ...] = ("ddp", *SHARDING)
"""Strategies whose collectives can be over other ranks for experts than for the rest."""


class Layout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ranks of a job as a mesh of pipeline, data, context and tensor parallelism, and what each axis
    does."""

    dp: int = 1
    """Ranks with batches of their own."""
    data: DataStrategy = "ddp"
    tp: int = 1
    """Ranks that split the matrices of a block."""
    cp: int = 1
    """Ranks that split each sequence: of 2·cp chunks each has an early and a late one, which makes causal
    attention equal work, and keys and values are gathered for it (Dubey et al. 2024, section 3.3.2). They
    share parameters as ranks of `dp` do. It is planned, and no engine of ours runs it."""
    ep: int = 1
    """Ranks that split the experts of each block, of those that otherwise share parameters (`n_sharing`):
    tokens are sent to their experts and back. It is planned, and no engine of ours runs it."""
    pp: int = 1
    """Ranks that split the blocks."""
    n_micro_batches: int = 1
    """Parts of a rank's batch that are run one after another. A pipeline needs at least one a stage."""
    schedule: Schedule = "1f1b"
    stages_per_rank: int = 1
    """More than one with the schedule `interleaved` alone."""
    bucket_mb: float | None = None
    """Megabytes (2**20) of gradients that are reduced together by `ddp`, `zero1` and `overlapped`; 0 is each
    parameter alone, None the strategy's own choice."""
    find_unused: bool = False
    """Whether `ddp` looks for parameters that a step did not use."""
    wrap: Wrap = "block"
    """Whether `zero2` and `fsdp` gather each block by itself, or the whole model at once."""
    blocks_together: int = 1
    """Blocks that `zero2` and `fsdp` gather at once. More of them cost the host less and memory more."""
    captured: bool = False
    """Whether a step of `zero2`, `fsdp` or `overlapped` is replayed as one CUDA graph, which takes the host
    nothing: an fsdp step of `xl` on two H200s went from 270 to 138 ms
    (results/2026-11-27-h200-parallel-2)."""

    @property
    def n_ranks(self) -> int:
        """All ranks of the mesh."""
        return self.dp * self.cp * self.tp * self.pp

    @property
    def n_sharing(self) -> int:
        """Ranks with the same parameters, over which gradients are reduced and shards are spread."""
        return self.dp * self.cp

    @property
    def name(self) -> str:
        """The axes with more than one rank, such as `fsdp 4 × tp 2`, and `fsdp 8 (ep 4) × tp 2`."""
        words = (
            f"{name} {size}{f' (ep {self.ep})' if at == 0 and self.ep > 1 else ''}"
            for at, (name, size) in enumerate(self.axes)
        )
        return " × ".join(words) or "one rank"

    @property
    def axes(self) -> tuple[tuple[str, int], ...]:
        """The axes with more than one rank, by name. That of `data` is also there for ranks of `cp` alone."""
        own = ((self.data, self.dp), ("cp", self.cp), ("tp", self.tp), ("pp", self.pp))
        is_shared = self.n_sharing > 1
        return tuple(each for each in own if each[1] > 1 or (is_shared and each[0] == self.data))


def expect_layout(layout: Layout, n_ranks: int) -> None:
    """
    Raises:
        PeakwardError: a size below 1, axes that do not make up all ranks, or settings that exclude each
            other.
    """
    sizes = [layout.dp, layout.cp, layout.tp, layout.pp, layout.ep]
    sizes += [layout.n_micro_batches, layout.stages_per_rank, layout.blocks_together]
    if min(sizes) < 1:
        raise PeakwardError(f"expected sizes of at least 1 in a layout, got {min(sizes)}")
    if layout.n_ranks != n_ranks:
        raise PeakwardError(
            f"expected a layout of {n_ranks} ranks, got {layout.name}, which takes {layout.n_ranks}: "
            "change an axis, or start another number of ranks"
        )
    if layout.ep > 1 and (layout.n_sharing % layout.ep or layout.data not in EXPERT_DATA):
        raise PeakwardError(
            f"expected {', '.join(EXPERT_DATA)} over a multiple of {layout.ep} ranks to split experts, got "
            f"{layout.data} over {layout.n_sharing}: change either"
        )
    if layout.tp > 1 and layout.n_sharing > 1 and layout.data not in (*SHARDING, "overlapped"):
        raise PeakwardError(
            f"expected fsdp, zero2 or overlapped beside tensor parallelism, got {layout.data}, which knows "
            "no parameters that are split already"
        )
    if (
        layout.pp > 1
        and layout.n_sharing > 1
        and layout.data in ("overlapped", "flat", "per-parameter")
    ):
        raise PeakwardError(
            f"expected ddp, zero1, zero2 or fsdp beside a pipeline, got {layout.data}: a pipeline decides "
            "itself after which micro-batch gradients are reduced"
        )
    if layout.pp > 1 and layout.n_micro_batches < layout.pp * layout.stages_per_rank:
        raise PeakwardError(
            f"expected at least {layout.pp * layout.stages_per_rank} micro-batches, one a stage, got "
            f"{layout.n_micro_batches}: the pipeline would never be full"
        )
    is_plain = layout.n_ranks == layout.dp and layout.ep == 1
    if layout.captured and (layout.data not in CAPTURABLE or not is_plain):
        raise PeakwardError(
            f"expected {', '.join(CAPTURABLE)} alone for a step as one CUDA graph, got {layout.name}: leave "
            "the graph"
        )
    if layout.stages_per_rank > 1 and layout.schedule != "interleaved":
        raise PeakwardError(
            f"expected one stage a rank with the schedule {layout.schedule}, got "
            f"{layout.stages_per_rank}: take interleaved"
        )


def expect_runnable(layout: Layout, n_ranks: int) -> None:
    """
    Raises:
        PeakwardError: as `expect_layout`; or context or expert parallelism, which no engine here runs.
    """
    expect_layout(layout, n_ranks)
    if layout.cp > 1 or layout.ep > 1:
        which = "context" if layout.cp > 1 else "expert"
        raise PeakwardError(
            f"expected a layout without {which} parallelism, got {layout.name}: it is planned and not run"
        )


def expect_shared(layout: Layout, shape: ModelShape, batch_size: int) -> None:
    """Refuses a layout that cannot share a model, or the batch of `batch_size` sequences for each rank.

    Raises:
        PeakwardError: as `expect_layout` and `expect_splittable`; fewer blocks than stages; a batch that the
            micro-batches do not divide.
    """
    expect_layout(layout, layout.n_ranks)
    if layout.tp > 1:
        expect_splittable(shape, layout.tp)
    expect_stages(layout, shape.n_layers)
    size = batch_size * layout.tp * layout.pp * layout.cp
    if size % layout.n_micro_batches:
        raise PeakwardError(
            f"expected a batch that {layout.n_micro_batches} micro-batches divide, got {size} sequences: "
            "change either"
        )


def expect_stages(layout: Layout, n_blocks: int) -> None:
    """
    Raises:
        PeakwardError: fewer blocks than stages.
    """
    n_stages = layout.pp * layout.stages_per_rank
    if n_blocks < n_stages:
        raise PeakwardError(
            f"expected at least a block for each of {n_stages} stages, got {n_blocks}: take fewer"
        )


LEAST_CHUNK = 256
"""The fewest tokens of each of the 2·cp chunks of a sequence: two tiles of 128, that of the kernels of
attention."""


def expect_chunks(n_ranks: int, seq_len: int, positions: Positions) -> None:
    """
    Raises:
        PeakwardError: a sequence that the ranks of context parallelism cannot split into two chunks each, or
            a bias on scores that depends on where a chunk is.
    """
    if n_ranks == 1:
        return
    n_chunks = 2 * n_ranks
    if seq_len % n_chunks or seq_len < n_chunks * LEAST_CHUNK:
        raise PeakwardError(
            f"expected a sequence of {n_chunks} chunks of at least {LEAST_CHUNK} tokens for context "
            f"parallelism over {n_ranks} ranks, got {seq_len} tokens: take fewer ranks, or a longer sequence"
        )
    if positions == "alibi":
        raise PeakwardError(
            "expected positions without ALiBi's bias on scores for context parallelism, which gathers keys "
            "and values alone: take another axis"
        )


def expect_experts(n_ranks: int, shape: ModelShape) -> None:
    """
    Raises:
        PeakwardError: experts that so many ranks cannot share.
    """
    if shape.n_experts % n_ranks:
        has, then = f"{shape.n_experts} experts", "take a divisor of their number"
        if shape.n_experts == 1:
            has, then = "a dense model", "leave the axis out"
        raise PeakwardError(
            f"expected experts that {n_ranks} ranks of expert parallelism can share, got {has}: {then}"
        )


def expect_splittable(shape: ModelShape, n_ranks: int) -> None:
    """
    Raises:
        PeakwardError: heads, widths or words that so many ranks cannot share, or parts without a rule.
    """
    for name in ("n_heads", "n_kv_heads", "d_ff", "vocab_size"):
        size = getattr(shape, name)
        if size % n_ranks:
            raise PeakwardError(
                f"expected {name} that {n_ranks} ranks of tensor parallelism can share, got {size}: "
                "take a divisor of it"
            )
    if shape.n_experts > 1 or shape.positions == "alibi":
        what = "a mixture of experts" if shape.n_experts > 1 else "ALiBi's slopes"
        raise PeakwardError(
            f"expected a dense decoder without ALiBi for tensor parallelism, got {what}, which it does not "
            "split: take fsdp"
        )
