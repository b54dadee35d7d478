"""Ranks of a job, measured: collectives between them, and a training step that they share."""

from typing import ClassVar

import msgspec

from peakward.records.case import ModelCase, ModuleCase
from peakward.records.layout import Collective, Layout
from peakward.records.result import Result


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

    started_at: str | None = None
    wall_s: float | None = None
    """Both are None in records that are older than these fields."""
    device_name: str
    """`cpu` of ranks that share one processor."""
    n_ranks: int
    backend: str
    """nccl or gloo."""
    torch: str
    times: tuple[CollectiveTime, ...]
    fits: tuple[LinkFit, ...]


class Sent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The calls of one collective in a step of one rank."""

    collective: str
    """One of `Collective`, or another: `broadcast`."""
    n_calls: int
    n_bytes: int
    """The bytes of all calls, as those of a `CollectiveTime`."""


class RankUse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The memory and the traffic of a training step on one rank. Memory is what torch's allocator gave out:
    None on a CPU, and where an arm before this one has left much of its own."""

    built_bytes: int | None = None
    """After construction, before the first step."""
    between_bytes: int | None = None
    """Between steps."""
    peak_bytes: int | None = None
    """The most during a step."""
    held_bytes: dict[str, int] = msgspec.field(default_factory=dict)
    """Parameters, gradients and optimiser state between steps, counted on any device."""
    n_unused: int = 0
    """Trained parameters without a gradient, for which DistributedDataParallel therefore looked in each step.
    They are counted for it alone, of a user's module."""
    sent: tuple[Sent, ...] = ()
    communication_s: float | None = None
    """The mean time of profiled steps in which kernels of collectives ran, waits for other ranks included;
    None on a CPU."""
    exposed_s: float | None = None
    """The part of it in which no other kernel ran."""
    own_s: tuple[float, ...] = ()
    """The time of each profiled step that the rank did not wait in collectives. Empty in records that are
    older than this field."""
    sm_clock_mhz: float | None = None
    """The GPU's clock in timed steps, read once while its queue was full. None on a CPU, and in records that
    are older than this field."""


class RanksWork(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A layout's step, by rank."""

    backend: str
    ranks: tuple[RankUse, ...]


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

    case: ModelCase | ModuleCase
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
    accounts: bool = False
    """Whether a step of each arm is watched for what it sends, and some are profiled for how much of that is
    hidden and how long each rank works itself, after all were timed."""
    trace_folder: str | None = None
    """Where each rank writes a trace of every arm."""


class ArmRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The steps of one rank between two changes of arm."""

    arm: str
    failed: str | None = None
    """The reason why the arm did not run."""
    steps_s: tuple[float, ...] = ()
    loss: float | None = None
    use: RankUse = RankUse()
    """Without what other arms hold; empty of a run in turns."""
    sm_clock_mhz: float | None = None
    power_w: float | None = None
    """Read once, while the queue was full."""
    is_solo: bool = False
    turns: tuple[str, ...] | None = None
    """The arms that were in turns."""
