"""The tables of a trace's report. A profile's nanoseconds are printed as seconds."""

from collections.abc import Sequence

from peakward.records.profile import DeviceTime, Group, Job, Profile, Waiting, WorkPhase
from peakward.records.study import Column, Table
from peakward.report.profile.wording import wording

NS = 1e-9
PHASES: tuple[WorkPhase, ...] = ("forward", "backward", "optimizer", "other")
CAUSES = {
    "profiler": "the profiler itself",
    "data_loading": "waiting for the next batch",
    "synchronisation": "the host waited for the GPU",
    "after_synchronisation": "the host caught up after it had waited",
    "host_bound": "the host had not launched yet",
    "graph_start": "start of a graph",
    "stream_wait": "a wait for another stream or device",
    "unseen": "something that the trace does not show",
    "queued": "from one piece of queued work to the next",
    "launch_latency": "a launch's way to an idle GPU",
    "unknown": "unknown: the trace lacks the launch",
}
"""What `traces.idle_causes` defines, in words."""
PATH = {
    "compute": "kernels that compute",
    "communication": "kernels that communicate",
    "memory": "copies and sets",
    "operator": "operators on the host",
    "call": "calls into the driver",
    "host": "other work of the host",
    "launch_latency": "launches on their way",
    "queued": "from one piece of queued work to the next",
    "synchronisation": "the end of a wait",
    "unknown": "unknown",
}
"""What `traces.critical_path.PathKind` defines, in words."""
TYPES = {"c10::BFloat16": "bf16", "c10::Half": "fp16", "float": "fp32", "double": "fp64"}
LONGEST = 44
"""Characters of a kernel's name on the one screen; its ends tell more than its middle."""
N_OPERATORS = 20
N_ON_PATH = 10
Row = tuple[str | int | float | None, ...]


def time(found: Profile) -> Table:
    """What the GPU's time was taken by, each moment of a kind once."""
    total = found.breakdown.together
    parts = (
        ("compute", total.compute_ns),
        ("communication", total.communication_ns),
        ("communication without compute beside it", total.exposed_communication_ns),
        ("copies and sets", total.memory_ns),
        ("copies and sets alone", total.exposed_memory_ns),
        ("busy", total.busy_ns),
        ("idle", total.idle_ns),
    )
    words = wording(found)
    always = ("busy", "idle") if found.is_of_host else ("compute", "busy", "idle")
    kept = [each for each in parts if each[0] in always or (each[1] and not found.is_of_host)]
    return Table(
        title="Where the time went",
        columns=(
            Column(name=words.device, unit="name"),
            Column(name="time", unit="s"),
            Column(name="share of the span", unit="share"),
        ),
        rows=tuple(
            (words.parts.get(name, name), ns * NS, _share(ns, total.span_ns)) for name, ns in kept
        ),
    )


def devices(found: Profile) -> Table:
    """The same for each device, where there are several."""
    return Table(
        title="By device",
        columns=(
            Column(name="device"),
            *(
                Column(name=name, unit="s")
                for name in ("span", "busy", "idle", "compute", "communication", "copies and sets")
            ),
            Column(name="kernels", unit="count"),
        ),
        rows=tuple(_device(each) for each in found.breakdown.devices),
    )


def _device(one: DeviceTime) -> Row:
    times = (
        one.span_ns,
        one.busy_ns,
        one.idle_ns,
        one.compute_ns,
        one.communication_ns,
        one.memory_ns,
    )
    n_kernels = one.n_compute + one.n_communication
    return (f"GPU {one.device}", *(each * NS for each in times), n_kernels)


def idle(found: Profile) -> Table:
    """Why no work ran, the greatest cause first."""
    by_cause = {} if found.idle is None else found.idle.together.by_cause_ns
    idle_ns = sum(by_cause.values())
    causes = sorted(by_cause.items(), key=lambda each: -each[1])
    return Table(
        title="Why the GPU was idle",
        columns=(
            Column(name="cause", unit="name"),
            Column(name="time", unit="s"),
            Column(name="share of idle", unit="share"),
        ),
        rows=tuple((CAUSES[name], ns * NS, _share(ns, idle_ns)) for name, ns in causes if ns),
    )


def collectives(found: Profile) -> Table:
    """Kernels that communicate, and how much of them nothing hid."""
    return Table(
        title="Collectives",
        columns=(
            Column(name="kernel", unit="name"),
            Column(name="n", unit="count"),
            Column(name="time", unit="s"),
            Column(name="without compute beside it", unit="s"),
            Column(name="longest", unit="s"),
        ),
        rows=tuple(
            (each.name, each.n, each.united_ns * NS, each.exposed_ns * NS, each.longest_ns * NS)
            for each in found.collectives
        ),
    )


def categories(found: Profile) -> Table:
    """Kernel time by category, a column for each phase that has any."""
    phases = [phase for phase in PHASES if any(each.phase == phase for each in found.categories)]
    totals: dict[str, dict[str, int]] = {}
    for each in found.categories:
        by_phase = totals.setdefault(each.name, {})
        by_phase[str(each.phase)] = by_phase.get(str(each.phase), 0) + each.total_ns
    whole = sum(sum(by_phase.values()) for by_phase in totals.values())
    order = sorted(totals, key=lambda name: -sum(totals[name].values()))
    return Table(
        title=wording(found).categories,
        columns=(
            Column(name="category"),
            *(Column(name=phase, unit="s") for phase in phases),
            Column(name="total", unit="s"),
            Column(name="share", unit="share"),
        ),
        rows=tuple(_category(name, totals[name], phases, whole) for name in order),
    )


def _category(name: str, by_phase: dict[str, int], phases: Sequence[WorkPhase], whole: int) -> Row:
    total = sum(by_phase.values())
    cells = (by_phase[phase] * NS if phase in by_phase else None for phase in phases)
    return (name, *cells, total * NS, _share(total, whole))


def top(found: Profile, n: int) -> Table:
    """The kernels or operators that take most, as wide as a screen."""
    groups, words = found.kernels[:n], wording(found)
    return Table(
        title=f"The {len(groups)} {words.units} that take most",
        columns=(
            Column(name=words.unit, unit="name"),
            Column(name="category"),
            Column(name="phase"),
            Column(name="n", unit="count"),
            Column(name="total", unit="s"),
            Column(name="share", unit="share"),
            Column(name="median", unit="s"),
        ),
        rows=tuple((_cut(each.name), *_kernel(each)[1:6], each.median_ns * NS) for each in groups),
    )


def _cut(name: str) -> str:
    if len(name) <= LONGEST:
        return name
    end = LONGEST // 3
    return f"{name[: LONGEST - end - 1]}…{name[-end:]}"


def path(found: Profile) -> Table:
    """The chain that took the whole time, by kind."""
    parts = {} if found.path is None else found.path.by_kind_ns
    whole = sum(parts.values())
    order = sorted(parts.items(), key=lambda each: -each[1])
    return Table(
        title="The critical path by kind",
        columns=(
            Column(name="on the path", unit="name"),
            Column(name="time", unit="s"),
            Column(name="share", unit="share"),
        ),
        rows=tuple((PATH[kind], ns * NS, _share(ns, whole)) for kind, ns in order if ns),
        note="To end sooner, shorten what is on the path. Profiling makes the host slower, so its "
        "share is at most this.",
    )


def on_path(found: Profile) -> Table:
    """What holds most of it."""
    shares = () if found.path is None else found.path.shares[:N_ON_PATH]
    return Table(
        title="What takes most of the critical path",
        columns=(
            Column(name="kind"),
            Column(name="name", unit="name"),
            Column(name="n", unit="count"),
            Column(name="time", unit="s"),
        ),
        rows=tuple((PATH[each.kind], each.name, each.n, each.ns * NS) for each in shares),
    )


def fused(found: Profile) -> Table:
    """What a compiler put into its kernels."""
    groups = [each for each in found.kernels if each.fused]
    return Table(
        title="Compiled kernels, and the operators that they fuse",
        columns=(
            Column(name="kernel", unit="name"),
            Column(name="phase"),
            Column(name="n", unit="count"),
            Column(name="total", unit="s"),
            Column(name="operators", unit="name"),
        ),
        rows=tuple(
            (_cut(each.name), each.phase, each.n, each.total_ns * NS, ", ".join(each.fused))
            for each in groups
        ),
    )


def operators(found: Profile) -> Table:
    """What operators achieved."""
    return Table(
        title="Operators whose shapes were recorded",
        columns=(
            Column(name="operator", unit="name"),
            Column(name="sizes", unit="name"),
            Column(name="type"),
            Column(name="n", unit="count"),
            Column(name="self time" if found.is_of_host else "kernels", unit="s"),
            Column(name="rate", unit="flops_per_s"),
            Column(name="bandwidth", unit="bytes_per_s"),
            Column(name="share of roof", unit="share"),
        ),
        rows=tuple(
            (
                each.name,
                each.dims,
                TYPES.get(each.dtype or "", each.dtype),
                each.n,
                each.kernel_ns * NS,
                each.flops_per_s,
                each.bytes_per_s,
                each.roof_share,
            )
            for each in found.operators[:N_OPERATORS]
        ),
        note="FLOPs are what the maths needs, bytes each input and output once. The roof is the "
        "datasheet's: the longer of FLOPs over the peak of their type and bytes over the bandwidth.",
    )


def kernels(found: Profile) -> Table:
    """Kernels or operators by phase, with the spread of their durations."""
    words = wording(found)
    return Table(
        title=f"{words.units.capitalize()} by phase",
        columns=(
            Column(name=words.unit, unit="name"),
            Column(name="category"),
            Column(name="phase"),
            Column(name="n", unit="count"),
            Column(name="total", unit="s"),
            Column(name="share", unit="share"),
            *(Column(name=name, unit="s") for name in ("mean", "median", "min", "max", "sd")),
        ),
        rows=tuple(_kernel(each) for each in found.kernels),
    )


def _kernel(one: Group) -> Row:
    spread = (one.mean_ns, one.median_ns, one.min_ns, one.max_ns, one.std_ns)
    return (
        one.name,
        one.category,
        one.phase,
        one.n,
        one.total_ns * NS,
        one.share,
        *(each * NS for each in spread),
    )


def copies(found: Profile) -> Table:
    """Copies by direction."""
    return Table(
        title="Copies and sets",
        columns=(
            Column(name="direction"),
            Column(name="n", unit="count"),
            Column(name="bytes", unit="bytes"),
            Column(name="largest", unit="bytes"),
            Column(name="time", unit="s"),
            Column(name="rate", unit="bytes_per_s"),
        ),
        rows=tuple(
            (
                each.what.replace("_", " "),
                each.n,
                each.n_bytes,
                each.largest_bytes,
                each.sum_ns * NS,
                each.bytes_per_s,
            )
            for each in found.transfers
        ),
    )


def waits(found: Profile) -> Table:
    """Where the host waited."""
    return Table(
        title="Where the host waited for the GPU",
        columns=(
            Column(name="call", unit="name"),
            Column(name="within", unit="name"),
            Column(name="line", unit="name"),
            Column(name="n", unit="count"),
            Column(name="time", unit="s"),
            Column(name="with the GPU idle", unit="s"),
        ),
        rows=tuple(_wait(each) for each in found.waits),
    )


def _wait(one: Waiting) -> Row:
    within = " in ".join(each for each in (one.operator, one.range) if each) or None
    return (one.call, within, one.python, one.n, one.sum_ns * NS, one.gpu_idle_ns * NS)


def delays(found: Profile) -> Table:
    """How far the host was ahead."""
    return Table(
        title="From the return of a launch to the start of its work",
        columns=(
            Column(name="device"),
            Column(name="launches", unit="count"),
            Column(name="median", unit="s"),
            Column(name="95th percentile", unit="s"),
            Column(name="longest", unit="s"),
            Column(name="mean queue"),
            Column(name="longest queue", unit="count"),
            Column(name="queue empty", unit="share"),
        ),
        rows=tuple(
            (
                f"GPU {each.device}",
                each.n_launches,
                each.median_ns * NS,
                each.p95_ns * NS,
                each.max_ns * NS,
                f"{each.mean_queue:.1f}",
                each.max_queue,
                each.empty_queue_share,
            )
            for each in found.delays
        ),
    )


def ranks(found: Job) -> Table:
    """Who computed, who waited and who came last."""
    return Table(
        title="Ranks",
        columns=(
            Column(name="rank"),
            Column(name="file", unit="name"),
            Column(name="compute", unit="s"),
            Column(name="communication", unit="s"),
            Column(name="waiting for the last rank", unit="s"),
            Column(name="last to begin", unit="count"),
            Column(name="clock moved by", unit="s"),
        ),
        rows=tuple(
            (
                str(each.rank),
                each.source,
                each.compute_ns * NS,
                each.communication_ns * NS,
                each.waited_ns * NS,
                each.n_last,
                each.offset_ns * NS,
            )
            for each in found.ranks
        ),
        note="Clocks are aligned by the ends of collectives, which are about the same on all ranks.",
    )


def _share(part_ns: int, whole_ns: int) -> float | None:
    return part_ns / whole_ns if whole_ns else None
