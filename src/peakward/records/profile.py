"""What a trace says: where the time of a GPU went, in plain numbers. Times are integer nanoseconds.

Of a trace without GPU work, the host's operators stand in the GPU's place: a `Profile` whose
`devices` is `(CPU,)`. A kernel is then an operator and its duration the operator's self time.
"""

from typing import ClassVar, Literal

import msgspec

from peakward.records.case import Case
from peakward.records.device import Accelerator
from peakward.records.result import Result

WorkPhase = Literal["forward", "backward", "optimizer", "other"]
"""`other` is work that no evidence puts into one of the three."""
CPU = "CPU"
"""The name of the host, as a device."""


class DeviceTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The time of one device, or of several added up.

    Times of a kind are united over streams: two kernels at once count once. Compute, communication
    and memory may overlap one another, so they need not add up to busy; `compute_ns`,
    `exposed_communication_ns` and `exposed_memory_ns` do.
    """

    device: int | None
    """As the trace numbers it; None where devices are added up."""
    span_ns: int
    """Of the steps where the trace marks some (`traces.step_spans`), else from the start of the device's
    first work to the end of its last."""
    busy_ns: int
    """At least one piece of work ran."""
    compute_ns: int
    """A kernel ran that is not communication."""
    communication_ns: int
    memory_ns: int
    """A copy or a set ran."""
    communication_under_compute_ns: int
    """Communication and compute ran at once."""
    memory_under_compute_ns: int
    """A copy or a set and compute ran at once."""
    exposed_memory_ns: int
    """A copy or a set ran, and neither compute nor communication."""
    n_compute: int
    n_communication: int
    n_copies: int
    n_sets: int

    @property
    def idle_ns(self) -> int:
        """Nothing ran."""
        return self.span_ns - self.busy_ns

    @property
    def exposed_communication_ns(self) -> int:
        """Communication ran, and no compute."""
        return self.communication_ns - self.communication_under_compute_ns


class Breakdown(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The time of each device, and of all."""

    ROWS: ClassVar[tuple[str, ...]] = ("devices",)

    devices: tuple[DeviceTime, ...]
    together: DeviceTime
    """The devices' figures added up, spans too: device-nanoseconds."""
    span_ns: int
    """From the first start of a device's span to the last end of one; 0 without GPU work."""


class DeviceIdle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The idle time of one device, or of several added up."""

    device: int | None
    """As the trace numbers it; None where devices are added up."""
    n_gaps: int
    idle_ns: int
    """As the breakdown has it."""
    by_cause_ns: dict[str, int]
    """By every cause of `traces.idle_causes`, in lower case; sums to `idle_ns`."""
    longest_ns: int
    """The longest gap; 0 where there is none."""


IDLE_CAUSES = {
    "profiler": "profiler overhead",
    "data_loading": "data loading",
    "synchronisation": "synchronisation",
    "after_synchronisation": "host-bound after a synchronisation",
    "host_bound": "host-bound",
    "stream_wait": "wait for another stream or device",
    "unseen": "unknown (nothing in the trace explains it)",
    "graph_start": "graph launch latency",
    "queued": "gaps between queued kernels",
    "launch_latency": "launch latency",
    "unknown": "unknown (its launch is not in the trace)",
}
"""The causes that `traces.idle_causes` defines, in words."""


class IdleCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call of the host that it was in while a device was idle."""

    cause: str
    """What most of these gaps were idle for, as a key of `by_cause_ns`."""
    call: str
    """Into the CUDA or HIP runtime or driver, by plain name."""
    ns: int
    """Of such gaps, while any thread was in it."""
    longest_ns: int
    """In one gap."""


class Idle(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The idle time of each device, and of all."""

    ROWS: ClassVar[tuple[str, ...]] = ("devices",)

    devices: tuple[DeviceIdle, ...]
    together: DeviceIdle
    """The devices' figures added up; the longest gap of any."""
    calls: tuple[IdleCall, ...] = ()
    """The few that took most of the gaps of each cause, at least a tenth, the longest first. Calls may lie
    within one another."""


class LaunchDelay(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The launches of one device's work.

    The *delay* of a launch is from the return of its call to the start of its first work: 0 where that
    starts before the call returns. A blocking copy counts as returned when it begins. Quantiles are
    launches' own delays, the least that so large a share of them do not exceed.

    The *queue* holds what has been launched but has not started: every piece of work from the return
    of its call to its own start, so that a graph brings all of its kernels at once. Its figures are
    over the device's span and count work whose launch the trace has.
    """

    device: int
    """As the trace numbers it."""
    n_launches: int
    median_ns: int
    p95_ns: int
    max_ns: int
    mean_queue: float
    """Weighted by time."""
    max_queue: int
    empty_queue_share: float
    """Of the span, with nothing launched that had not started: the GPU had at most what ran."""


class Transfers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Copies in one direction, or sets, of all devices."""

    what: str
    """A Direction in lower case, or "set"."""
    n: int
    n_bytes: int
    """Of those whose size the trace has."""
    largest_bytes: int | None
    """None where it has no size."""
    sum_ns: int
    """Durations added up."""
    united_ns: int
    """The time in which at least one ran, added up over devices."""
    bytes_per_s: float | None
    """The bytes over the summed durations of the same rows; None where these are 0."""


class Waiting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Calls at one place that kept the host until the GPU had got somewhere: synchronisations and
    blocking copies (`traces.calls.WAITS`). What is around a call is a row of its own thread that
    covers it.
    """

    call: str
    operator: str | None
    """The innermost operator around."""
    range: str | None
    """The innermost named range around."""
    python: str | None
    """The innermost Python function around that is not torch's own, else the innermost of torch's, as
    `file.py(line): function`; None without Python stacks on that thread."""
    n: int
    sum_ns: int
    """The host's time in the calls, added up."""
    gpu_idle_ns: int
    """Of `sum_ns`, while no GPU ran any work of that process."""
    longest_ns: int


class Collective(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The kernels of one name that communicate, on all devices."""

    name: str
    n: int
    sum_ns: int
    """Durations added up."""
    united_ns: int
    """The time in which at least one ran, added up over devices."""
    exposed_ns: int
    """Of `united_ns`, what no compute kernel of the same device ran beside. Kernels of two names that
    ran exposed at once are each counted whole."""
    longest_ns: int


class Group(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """GPU work taken together: of one name, category or phase."""

    name: str
    category: str | None
    """None where the group holds several."""
    phase: WorkPhase | None
    """None where the group holds several."""
    n: int
    total_ns: int
    """Sum of durations: work on several streams at once counts each."""
    share: float
    """Of the total of the table that the group stands in."""
    mean_ns: float
    median_ns: float
    min_ns: int
    max_ns: int
    std_ns: float
    """Population standard deviation."""
    fused: tuple[str, ...] = ()
    """The operators of the source that a compiler put into this kernel, where its name tells."""


class PathShare(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is on the path under one name."""

    kind: str
    """Of `traces.critical_path.PathKind`."""
    name: str | None
    """Of a kernel, copy, operator or call, and of `HOST` the innermost range; None of what has none."""
    n: int
    """Rows of the table on the path, or gaps, or stretches of the host."""
    ns: int


class CriticalPath(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The path, added up."""

    ROWS: ClassVar[tuple[str, ...]] = ("shares",)

    span_ns: int
    """From the first start of a device's span to the last end of one."""
    by_kind_ns: dict[str, int]
    """By every PathKind; sums to `span_ns`."""
    shares: tuple[PathShare, ...]
    """The longest first; sums to `span_ns`."""


class OperatorRate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Operators of one name and shape, with what they asked of the GPU and how fast they got it."""

    name: str
    dims: str
    """Of the arguments, as the trace has them."""
    dtype: str | None
    """Of the first tensor."""
    n: int
    flops: int | None
    """That the maths of all of them needs; None where unknown, or where it needs none to speak of."""
    n_bytes: int | None
    """Inputs and outputs of all of them, each once; None where unknown."""
    kernel_ns: int
    flops_per_s: float | None
    bytes_per_s: float | None
    roof_share: float | None
    """Of the datasheet's roofline: the least time for these FLOPs and bytes over `kernel_ns`. None
    where the device or the type of its matmuls is not known, or a cache let it go beyond."""


class RangeWork(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Work of one category for one of Peakward's own ranges, at any depth in it."""

    name: str
    """`peakward::block N`, `peakward::attention`, `peakward::attention.softmax`, …: what is for an
    attention's part is for the attention and for its block too."""
    direction: Literal["forward", "backward"]
    """Backward: launched by a backward pass, for what the range did forward; what that computes again
    too."""
    category: str
    n: int
    """Kernels, copies and sets."""
    total_ns: int
    """Sum of durations."""


class HostCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Calls of one name on the host."""

    name: str
    n: int
    sum_ns: int
    longest_ns: int


class HostWork(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the host was seen to call, beside launching work."""

    calls: tuple[HostCall, ...]
    """Into the CUDA or HIP runtime and driver, by plain name, the longest in sum first."""
    n_python: int
    """Calls of Python functions in the trace; 0: no Python stacks were recorded."""
    collections: HostCall | None
    """Of Python's garbage collector that the program itself asked for (`gc.collect`): automatic ones
    leave no mark in a trace. None where there are none."""


class Profile(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One trace file, analysed: all of it, or the work of one phase or range."""

    ROWS: ClassVar[tuple[str, ...]] = ("kernels",)

    source: str
    """The file's name."""
    format: str
    """"torch" or "nsys"."""
    devices: tuple[str, ...]
    rank: int | None
    world_size: int | None
    n_steps: int | None
    """Iterations that the trace marks; None where it marks none."""
    selection: str | None
    """What part of the trace this is about; None for all of it."""
    breakdown: Breakdown
    phases: tuple[Group, ...]
    categories: tuple[Group, ...]
    """By phase and category."""
    kernels: tuple[Group, ...]
    """By phase and name, the longest in total first."""
    collectives: tuple[Collective, ...]
    idle: Idle | None
    """None for a part, since what it waits for may be the rest, and of the host."""
    transfers: tuple[Transfers, ...]
    waits: tuple[Waiting, ...]
    delays: tuple[LaunchDelay, ...]
    path: CriticalPath | None
    """None for a part, and without GPU work."""
    operators: tuple[OperatorRate, ...]
    """Those whose shapes the trace recorded, by the time of their kernels."""
    evidence: tuple[str, ...]
    """How phases were told apart, in sentences."""
    unnamed_share: float
    """Of kernel time, in kernels that no rule of the categories names."""
    incomplete: tuple[str, ...]
    """What the trace could not say, and how much of it is missing."""
    ranges: tuple[RangeWork, ...] = ()
    """Where the trace has Peakward's ranges of blocks and attention; by name, as in the model."""
    host: HostWork | None = None
    """None in profiles from before it was kept."""
    accelerator: Accelerator | None = None
    """None of the host, and in profiles from before it was kept."""

    @property
    def is_of_host(self) -> bool:
        """Whether this is about the host's operators, for want of GPU work."""
        return self.devices == (CPU,)


class CaseProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Steps of a case that Peakward profiled itself."""

    id: str
    case: Case
    environment_key: str
    n_steps: int
    profiled_step_s: float
    """Median under the profiler, by the clock that measures: the profiler's own cost is in it."""
    trace: str
    """The trace's name beside the database (`store.artefacts`)."""
    profile: Profile


class Rank(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One process of a job, beside the others."""

    rank: int
    source: str
    offset_ns: int | None
    """Added to its times to put them on the first rank's clock; None where no collective ties the clocks:
    those of two hosts cannot be compared otherwise."""
    compute_ns: int
    communication_ns: int
    waited_ns: int
    """In collectives, before the last rank had begun them."""
    n_last: int
    """Collectives that it was the last to begin."""
    waited_for_late_ns: int = 0
    """Of `waited_ns`, for the job's late rank."""
    idle_ns: int | None = None
    """From its first work to its last, with nothing running."""


class Job(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Several ranks of one job."""

    ROWS: ClassVar[tuple[str, ...]] = ("ranks",)

    ranks: tuple[Rank, ...]
    n_collectives: int
    """That every rank has, matched by name and order."""
    n_unmatched: int
    """Left out, over all ranks: of names that the ranks have different numbers of."""
    imbalance: float | None
    """Largest compute time over the mean; None where nothing computes."""
    straggler: int | None
    """The rank that is last in more collectives than chance would make it, or None."""
    late: int | None = None
    """The rank for which the others wait so long that it is worth a finding, or None."""
    absent: tuple[int, ...] = ()
    """Ranks of the job whose files are not here."""
