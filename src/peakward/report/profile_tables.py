"""Tables of a trace's report: the GPU's time and idle causes, the host's effect on it, the ranks of a job."""

from collections.abc import Sequence

from peakward.records.finding import Diagnosis
from peakward.records.profile import IDLE_CAUSES, DeviceTime, Job, Profile, Waiting
from peakward.records.study import Column, Table
from peakward.report.format import format_cell
from peakward.report.profile_work import NS, Row, share, wording


def time(found: Profile) -> Table:
    """The GPU's time by kind. Each moment of a kind counts once."""
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
            (words.parts.get(name, name), ns * NS, share(ns, total.span_ns)) for name, ns in kept
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
    """The causes of idle time, the largest first."""
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
        rows=tuple((IDLE_CAUSES[name], ns * NS, share(ns, idle_ns)) for name, ns in causes if ns),
    )


def idle_calls(found: Profile) -> Table:
    """The calls that the host was in during idle time."""
    calls = () if found.idle is None else found.idle.calls
    return Table(
        title="Calls that the host was in while the GPU was idle",
        columns=(
            Column(name="cause of the gaps", unit="name"),
            Column(name="call", unit="name"),
            Column(name="time", unit="s"),
            Column(name="longest", unit="s"),
        ),
        rows=tuple(
            (IDLE_CAUSES[each.cause], each.call, each.ns * NS, each.longest_ns * NS)
            for each in calls
        ),
    )


def collectives(found: Profile) -> Table:
    """Communication kernels, and how much of their time is exposed."""
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


PATH = {
    "compute": "compute kernels",
    "communication": "communication kernels",
    "memory": "copies and sets",
    "operator": "host: operators",
    "call": "host: CUDA or HIP calls",
    "host": "host: other code",
    "launch_latency": "launch latency",
    "queued": "gaps between queued kernels",
    "synchronisation": "return from a synchronisation",
    "unknown": "unknown",
}
"""`traces.critical_path.PathKind` in words."""
N_ON_PATH = 10


def path(found: Profile) -> Table:
    """The critical path by kind."""
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
        rows=tuple((PATH[kind], ns * NS, share(ns, whole)) for kind, ns in order if ns),
        note="Only shorter work on the path ends the step sooner. The profiler slows the host, so "
        "the host's share is at most this.",
    )


def on_path(found: Profile) -> Table:
    """The names that hold most of the critical path."""
    shares = () if found.path is None else found.path.shares[:N_ON_PATH]
    return Table(
        title="Longest parts of the critical path",
        columns=(
            Column(name="kind"),
            Column(name="name", unit="name"),
            Column(name="n", unit="count"),
            Column(name="time", unit="s"),
        ),
        rows=tuple((PATH[each.kind], each.name, each.n, each.ns * NS) for each in shares),
    )


def waits(found: Profile) -> Table:
    """The places where the host waited."""
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
        title="Launch delay, from a launch's return to its work's start",
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


def ranks(found: Job, most: int | None = None) -> Table:
    """The compute time, waits and late starts of each rank. Beyond `most` ranks, only those that were last
    most often."""
    kept = found.ranks
    if most is not None and len(kept) > most:
        often = sorted(kept, key=lambda each: (-each.n_last, -each.compute_ns))[:most]
        kept = tuple(each for each in kept if each in often)
    said = []
    if found.n_collectives:
        said.append(
            "Clocks are aligned by the ends of collectives, which all ranks reach together."
        )
    if found.imbalance is not None:
        ratio = format_cell(found.imbalance, "ratio")
        said.append(f"The rank that computed most took {ratio} the mean of all ranks.")
    if any(each.exposed_ns is not None for each in found.ranks):
        work = "operator" if found.of_host else "kernel"
        said.append(f"Communication is exposed while no other {work} runs.")
    if len(kept) < len(found.ranks):
        n_left = len(found.ranks) - len(kept)
        said.append(f"{n_left:,} ranks that were seldom the last to begin are left out.")
    return Table(
        title="Ranks",
        columns=(
            Column(name="rank"),
            Column(name="file", unit="name"),
            Column(name="compute", unit="s"),
            Column(name="communication", unit="s"),
            Column(name="of it exposed", unit="s"),
            Column(name="idle", unit="s"),
            Column(name="waiting for the last rank", unit="s"),
            Column(name="last to begin", unit="count"),
        ),
        rows=tuple(
            (
                str(each.rank),
                each.source,
                each.compute_ns * NS,
                each.communication_ns * NS,
                None if each.exposed_ns is None else each.exposed_ns * NS,
                None if each.idle_ns is None else each.idle_ns * NS,
                each.waited_ns * NS if found.n_collectives else None,
                each.n_last if found.n_collectives else None,
            )
            for each in kept
        ),
        note=" ".join(said),
    )


def findings(found: Job, diagnoses: Sequence[Diagnosis]) -> Table:
    """The findings of all ranks by their share of the mean time; `diagnoses` are in the order of the
    ranks."""
    titles: dict[str, str] = {}
    shares: dict[str, dict[int, float]] = {}
    for rank, told in zip(found.ranks, diagnoses, strict=True):
        for each in told.findings:
            titles[each.code] = each.title
            shares.setdefault(each.code, {})[rank.rank] = each.share or 0.0
    order = sorted(shares, key=lambda code: (-sum(shares[code].values()), code))
    return Table(
        title="Findings of the ranks",
        columns=(
            Column(name="code"),
            Column(name="finding", unit="name"),
            Column(name="ranks"),
            Column(name="largest share", unit="share"),
        ),
        rows=tuple(
            (code, titles[code], spelt(tuple(shares[code])), max(shares[code].values()))
            for code in order
        ),
    )


def spelt(numbers: Sequence[int]) -> str:
    """Rank numbers in short form: "0 to 2, 4, 6"."""
    runs: list[list[int]] = []
    for each in sorted(numbers):
        if runs and each == runs[-1][-1] + 1:
            runs[-1].append(each)
        else:
            runs.append([each])
    said = [
        f"{run[0]} to {run[-1]}" if len(run) > _PAIR else ", ".join(map(str, run)) for run in runs
    ]
    return ", ".join(said[:_RUNS] + ["…"] * (len(said) > _RUNS))


_PAIR = 2
_RUNS = 8
