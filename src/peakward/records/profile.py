"""The analysis of a trace: where the time of a GPU went, in plain numbers. Times are integer nanoseconds.

For a trace without GPU work the host's operators take the GPU's place: the `Profile` then has `devices`
`(CPU,)`, its kernels are operators, and their durations are self times.
"""

from typing import ClassVar, Literal

import msgspec

from peakward.records.case import Case
from peakward.records.device import Accelerator
from peakward.records.result import Result

WorkPhase = Literal["forward", "backward", "optimizer", "other"]
"""`other` is work that no evidence puts into one of the other three."""
CPU = "CPU"
"""The host's name as a device."""


class DeviceTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The time of one device, or the sum over several.

    Times of a kind are merged over streams: two kernels at once count once. Compute, communication and memory
    may overlap one another, so they need not add up to busy time. `compute_ns`, `exposed_communication_ns`
    and `exposed_memory_ns` do.
    """

    device: int | None
    """The trace's number of the device; None for the sum over devices."""
    span_ns: int
    """The span of the marked steps (`traces.step_spans`); without marks, from the start of the device's first
    work to the end of its last."""
    busy_ns: int
    """Time in which at least one piece of work ran."""
    compute_ns: int
    """Time in which a kernel ran that is not communication."""
    communication_ns: int
    memory_ns: int
    """Time in which a copy or a set ran."""
    communication_under_compute_ns: int
    """Time in which communication and compute ran at once."""
    memory_under_compute_ns: int
    """Time in which a copy or a set ran at once with compute."""
    exposed_memory_ns: int
    """Time in which a copy or a set ran, without compute or communication."""
    n_compute: int
    n_communication: int
    n_copies: int
    n_sets: int

    @property
    def idle_ns(self) -> int:
        """Time in which nothing ran."""
        return self.span_ns - self.busy_ns

    @property
    def exposed_communication_ns(self) -> int:
        """Time in which communication ran without compute."""
        return self.communication_ns - self.communication_under_compute_ns


class Breakdown(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The time of each device, and their sum."""

    ROWS: ClassVar[tuple[str, ...]] = ("devices",)

    devices: tuple[DeviceTime, ...]
    together: DeviceTime
    """The sum over the devices, spans included, in device-nanoseconds."""
    span_ns: int
    """Time from the first start to the last end of the devices' spans; 0 without GPU work."""


class DeviceIdle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The idle time of one device, or the sum over several."""

    device: int | None
    """The trace's number of the device; None for the sum over devices."""
    n_gaps: int
    idle_ns: int
    """The idle time of the breakdown."""
    by_cause_ns: dict[str, int]
    """Every cause of `traces.idle_causes` in lower case. The values add up to `idle_ns`."""
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
    """A host call that ran while a device was idle."""

    cause: str
    """The cause of most of these gaps, as a key of `by_cause_ns`."""
    call: str
    """The plain name of a call into the CUDA or HIP runtime or driver."""
    ns: int
    """Time of such gaps while any thread was in the call."""
    longest_ns: int
    """The longest time in one gap."""


class Idle(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The idle time of each device, and their sum."""

    ROWS: ClassVar[tuple[str, ...]] = ("devices",)

    devices: tuple[DeviceIdle, ...]
    together: DeviceIdle
    """The sum over the devices; the longest gap of any."""
    calls: tuple[IdleCall, ...] = ()
    """The few calls that took most of the gaps of each cause, at least a tenth, the longest first. Calls may
    nest."""


class LaunchDelay(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The launches of one device's work.

    The *delay* of a launch is the time from the return of its call to the start of its first work, or 0 where
    the work starts earlier. A blocking copy counts as returned when it begins. A quantile is one launch's own
    delay: the smallest that this share of the launches does not exceed.

    The *queue* holds work that is launched but has not started: every piece of work from the return of its
    call to its own start, so a graph adds all of its kernels at once. The figures cover the device's span,
    and work whose launch is in the trace.
    """

    device: int
    """The trace's number of the device."""
    n_launches: int
    median_ns: int
    p95_ns: int
    max_ns: int
    mean_queue: float
    """The mean weighted by time."""
    max_queue: int
    empty_queue_share: float
    """The share of the span in which no launched work waited: the GPU had at most the work that ran."""


class Transfers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Copies in one direction, or sets, on all devices."""

    what: str
    """A Direction in lower case, or "set"."""
    n: int
    n_bytes: int
    """Bytes of the transfers whose size the trace has."""
    largest_bytes: int | None
    """None where the trace has no size."""
    sum_ns: int
    """The sum of the durations."""
    united_ns: int
    """The time in which at least one ran, summed over devices."""
    bytes_per_s: float | None
    """The bytes over the summed durations of the same rows; None where the durations are 0."""


class Waiting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Calls at one place that blocked the host until the GPU made progress: synchronisations and blocking
    copies (`traces.calls.WAITS`). An enclosing row covers the call on the same thread."""

    call: str
    operator: str | None
    """The innermost enclosing operator."""
    range: str | None
    """The innermost enclosing named range."""
    python: str | None
    """The innermost enclosing Python function outside torch, else the innermost one, as `file.py(line):
    function`. None without Python stacks on that thread."""
    n: int
    sum_ns: int
    """The host's time in the calls, summed."""
    gpu_idle_ns: int
    """The part of `sum_ns` in which no GPU ran work of that process."""
    longest_ns: int


class Collective(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The communication kernels of one name, on all devices."""

    name: str
    n: int
    sum_ns: int
    """The sum of the durations."""
    united_ns: int
    """The time in which at least one ran, summed over devices."""
    exposed_ns: int
    """The part of `united_ns` in which no compute kernel ran on the same device. Two kernels of different
    names that ran exposed at once both count in full."""
    longest_ns: int


class KernelGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """GPU work of one name, category or phase."""

    name: str
    category: str | None
    """None where the group holds several categories."""
    phase: WorkPhase | None
    """None where the group holds several phases."""
    n: int
    total_ns: int
    """The sum of durations: simultaneous work on several streams counts each time."""
    share: float
    """The share of the total of the table that holds the group."""
    mean_ns: float
    median_ns: float
    min_ns: int
    max_ns: int
    std_ns: float
    """The population standard deviation."""
    fused: tuple[str, ...] = ()
    """The source's operators that a compiler put into this kernel, where its name shows them."""


class PathShare(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of the critical path under one name."""

    kind: str
    """A `traces.critical_path.PathKind`."""
    name: str | None
    """The name of a kernel, copy, operator or call, or the innermost range for `HOST`; None without a
    name."""
    n: int
    """The number of table rows, gaps or host stretches on the path."""
    ns: int


class CriticalPath(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The critical path, summed by kind and name."""

    ROWS: ClassVar[tuple[str, ...]] = ("shares",)

    span_ns: int
    """Time from the first start to the last end of the devices' spans."""
    by_kind_ns: dict[str, int]
    """Every PathKind. The values add up to `span_ns`."""
    shares: tuple[PathShare, ...]
    """The longest first. They add up to `span_ns`."""


class OperatorRate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Operators of one name and shape: their FLOPs and bytes, and the rates that they reached on the GPU."""

    name: str
    dims: str
    """The shapes of the arguments, as in the trace."""
    dtype: str | None
    """The type of the first tensor."""
    n: int
    flops: int | None
    """FLOPs that the maths of all of them needs. None where unknown, or where it needs hardly any."""
    n_bytes: int | None
    """Inputs and outputs of all of them, each once; None where unknown."""
    kernel_ns: int
    flops_per_s: float | None
    bytes_per_s: float | None
    roof_share: float | None
    """The share of the datasheet's roofline: the minimum time for these FLOPs and bytes over `kernel_ns`.
    None where the device or the type of its matmuls is unknown, or where a cache makes it exceed the
    roofline."""


class RangeWork(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Work of one category inside one of Peakward's own ranges, at any depth."""

    name: str
    """`peakward::block N`, `peakward::attention`, `peakward::attention.softmax` and so on. Work of an
    attention's part also counts for the attention and for its block."""
    direction: Literal["forward", "backward"]
    """Backward work is launched by a backward pass for the range's forward work, including recomputation."""
    category: str
    n: int
    """The number of kernels, copies and sets."""
    total_ns: int
    """The sum of durations."""


class HostCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Calls of one name on the host."""

    name: str
    n: int
    sum_ns: int
    longest_ns: int


class HostWork(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Calls of the host beside launches of work."""

    calls: tuple[HostCall, ...]
    """Calls into the CUDA or HIP runtime and driver by plain name, the longest sum first."""
    n_python: int
    """Python function calls in the trace. 0: no Python stacks were recorded."""
    collections: HostCall | None
    """Garbage collections that the program itself requested (`gc.collect`). Automatic ones leave no mark in a
    trace. None where there are none."""


class Profile(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The analysis of one trace file: the whole of it, or the work of one phase or range."""

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
    """The analysed part of the trace; None for all of it."""
    breakdown: Breakdown
    phases: tuple[KernelGroup, ...]
    categories: tuple[KernelGroup, ...]
    """Sorted by phase and category."""
    kernels: tuple[KernelGroup, ...]
    """Sorted by phase and name, the longest total first."""
    collectives: tuple[Collective, ...]
    idle: Idle | None
    """None for a part of a trace, which may wait for the rest, and for a trace of the host."""
    transfers: tuple[Transfers, ...]
    waits: tuple[Waiting, ...]
    delays: tuple[LaunchDelay, ...]
    path: CriticalPath | None
    """None for a part of a trace, and without GPU work."""
    operators: tuple[OperatorRate, ...]
    """Operators whose shapes the trace recorded, sorted by the time of their kernels."""
    evidence: tuple[str, ...]
    """Sentences that say how phases were told apart."""
    unnamed_share: float
    """The share of kernel time in kernels that no rule of the categories names."""
    incomplete: tuple[str, ...]
    """Gaps of the trace, and how much is missing."""
    ranges: tuple[RangeWork, ...] = ()
    """Set where the trace has Peakward's ranges of blocks and attention. Names are as in the model."""
    host: HostWork | None = None
    """None in profiles older than this field."""
    accelerator: Accelerator | None = None
    """None for a trace of the host, and in profiles older than this field."""

    @property
    def is_of_host(self) -> bool:
        """Whether this is about the host's operators, because there is no GPU work."""
        return self.devices == (CPU,)


class CaseProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Steps of a case that Peakward profiled itself."""

    id: str
    case: Case
    environment_key: str
    n_steps: int
    profiled_step_s: float
    """The median under the profiler, by the clock of measurements. It includes the profiler's own cost."""
    trace: str
    """The trace's name beside the database (`store.artefacts`)."""
    profile: Profile


class Excess(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that took a late rank longer than the mean of the others, before the collectives that it
    began last."""

    kind: Literal["work", "idle"]
    name: str | None
    """The kernel or copy; when idle, what its host did for most of that time, if one thing did."""
    ns: int


class Rank(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One process of a job, compared with the others."""

    rank: int
    source: str
    offset_ns: int | None
    """The offset that puts its times on the first rank's clock. None where no collective ties the clocks:
    those of two hosts cannot be compared otherwise."""
    compute_ns: int
    communication_ns: int
    waited_ns: int
    """Time in collectives before the last rank had begun them."""
    n_last: int
    """Collectives that this rank began last."""
    waited_for_late_ns: int = 0
    """The part of `waited_ns` that is for the job's late rank."""
    idle_ns: int | None = None
    """Time from its first work to its last in which nothing ran."""
    exposed_ns: int | None = None
    """The part of `communication_ns` in which no other kernel ran."""
    behind_ns: int = 0
    """Time by which it began after the last of the others, over the collectives that it began last."""


class Job(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Several ranks of one job."""

    ROWS: ClassVar[tuple[str, ...]] = ("ranks",)

    ranks: tuple[Rank, ...]
    n_collectives: int
    """Collectives that several ranks have, matched by what the traces say of them, or by name and order."""
    n_unmatched: int
    """Collectives left out, over all ranks, because the ranks have different numbers of them."""
    imbalance: float | None
    """The largest compute time over the mean; None where nothing computes."""
    straggler: int | None
    """The rank that is last in more collectives than chance explains, or None."""
    late: int | None = None
    """The rank for which the others wait long enough for a finding, or None."""
    absent: tuple[int, ...] = ()
    """Ranks of the job whose files are missing here."""
    of_host: bool = False
    """Whether the ranks are processes without a GPU: their compute is operators', their communication
    gloo's."""
    late_by: tuple[Excess, ...] = ()
    """The excesses of the late rank, or else of the straggler, the largest first."""
