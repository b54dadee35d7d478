"""How the ranks of a job share a training step."""

from typing import ClassVar, Literal

import msgspec

from peakward.records.case import ModelCase
from peakward.records.errors import PeakwardError
from peakward.records.result import Result

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
SHARDING = ("zero2", "fsdp")
"""Strategies of `fully_shard`."""


class Layout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ranks of a job as a mesh of pipeline, data and tensor parallelism, and what each axis does."""

    dp: int = 1
    """Ranks with batches of their own."""
    data: DataStrategy = "ddp"
    tp: int = 1
    """Ranks that split the matrices of a block."""
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

    @property
    def n_ranks(self) -> int:
        """All ranks of the mesh."""
        return self.dp * self.tp * self.pp

    @property
    def name(self) -> str:
        """The axes with more than one rank, such as `fsdp 4 × tp 2`."""
        axes = ((self.data, self.dp), ("tp", self.tp), ("pp", self.pp))
        return " × ".join(f"{name} {size}" for name, size in axes if size > 1) or "one rank"


def expect_layout(layout: Layout, n_ranks: int) -> None:
    """
    Raises:
        PeakwardError: a size below 1, axes that do not make up all ranks, or settings that exclude each
            other.
    """
    sizes = (layout.dp, layout.tp, layout.pp, layout.n_micro_batches, layout.stages_per_rank)
    if min(sizes) < 1:
        raise PeakwardError(f"expected sizes of at least 1 in a layout, got {min(sizes)}")
    if layout.n_ranks != n_ranks:
        raise PeakwardError(
            f"expected a layout of {n_ranks} ranks, got {layout.name}, which takes {layout.n_ranks}: "
            "change an axis, or start another number of ranks"
        )
    if layout.tp > 1 and layout.dp > 1 and layout.data not in (*SHARDING, "overlapped"):
        raise PeakwardError(
            f"expected fsdp, zero2 or overlapped beside tensor parallelism, got {layout.data}, which knows "
            "no parameters that are split already"
        )
    if layout.pp > 1 and layout.dp > 1 and layout.data in ("overlapped", "flat", "per-parameter"):
        raise PeakwardError(
            f"expected ddp, zero1, zero2 or fsdp beside a pipeline, got {layout.data}: a pipeline decides "
            "itself after which micro-batch gradients are reduced"
        )
    if layout.pp > 1 and layout.n_micro_batches < layout.pp * layout.stages_per_rank:
        raise PeakwardError(
            f"expected at least {layout.pp * layout.stages_per_rank} micro-batches, one a stage, got "
            f"{layout.n_micro_batches}: the pipeline would never be full"
        )
    if layout.stages_per_rank > 1 and layout.schedule != "interleaved":
        raise PeakwardError(
            f"expected one stage a rank with the schedule {layout.schedule}, got "
            f"{layout.stages_per_rank}: take interleaved"
        )


Collective = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "point-to-point"]


class CollectiveTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The time of one collective of one size; sizes and rates are those of nccl-tests."""

    collective: Collective
    n_bytes: int
    """The whole tensor: what an all-reduce sums on every rank, what all ranks of an all-gather have at its
    end or of a reduce-scatter at its start, what a rank of an all-to-all has, what one rank sends."""
    time_s: float
    """The median over repeats of the slowest rank's mean over calls back to back."""
    bus_bytes_per_s: float
    """The rate at which each rank sends at least: `n_bytes` times 2·(n - 1)/n for an all-reduce, (n - 1)/n
    for the next three, 1 for the last, over the time."""


class LinkFit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times of a collective as a latency and a rate: latency + bytes on the bus / rate."""

    collective: Collective
    latency_s: float
    bus_bytes_per_s: float
    worst_error: float
    """The largest error of the fit over the measured time, as a share."""


class LinkCalibration(
    Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """Collectives between the devices of one machine, measured."""

    ROWS: ClassVar[tuple[str, ...]] = ("times",)

    started_at: str
    wall_s: float
    device_name: str
    """`cpu` of ranks that share one processor."""
    n_ranks: int
    backend: str
    """nccl or gloo."""
    torch: str
    times: tuple[CollectiveTime, ...]
    fits: tuple[LinkFit, ...]


class Arm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way to run a training step, of those that are compared on the ranks of a job."""

    name: str
    layout: Layout
    """One of a single rank runs on the first alone; there `ddp` is the plain module without a wrapper."""
    is_on_every_rank: bool = False
    """Whether one of a single rank runs on each of them at once instead, which shows how alike they are."""
    compiled: bool = True
    """Whether each block is compiled by itself."""
    reduces_in_fp32: bool = False
    """Whether `zero2` and `fsdp` add gradients up in fp32 where they compute in 16 bits."""
    delayed_rank: int | None = None
    """A rank that is made late on purpose in every step."""
    delay_s: float = 0.0


class ArmsRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A comparison that the ranks of a job are asked for."""

    case: ModelCase
    """A training step; its batch is that of one rank."""
    arms: tuple[Arm, ...]
    """Each is timed by itself, with the peak of its memory."""
    turns: tuple[tuple[str, ...], ...] = ()
    """Names of arms that are timed in turns, A B C C B A …; the others are held against the first."""
    all_resident: bool = True
    """Whether memory holds all arms that take turns; else each is built anew for its turn."""
    n_warmup: int = 6
    n_settling: int = 2
    n_solo_steps: int = 10
    n_steps: int = 12
    n_rounds: int = 4
    n_traced: int = 3
    trace_folder: str | None = None
    """Where each rank writes a trace of every arm."""


class ArmRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The steps of one rank between two changes of arm."""

    arm: str
    failed: str | None = None
    """The reason why the arm did not run."""
    steps_s: tuple[float, ...] = ()
    loss: float | None = None
    peak_bytes: int | None = None
    """The most that the allocator had given out during the steps, without other arms; None on a CPU."""
    between_bytes: int | None = None
    """The same between steps."""
    held_bytes: dict[str, int] = msgspec.field(default_factory=dict)
    """Parameters, gradients and optimiser state of this rank between steps."""
    sm_clock_mhz: float | None = None
    power_w: float | None = None
    """Read once, while the queue was full."""
    is_solo: bool = False
    turns: tuple[str, ...] | None = None
    """The arms that were in turns."""
