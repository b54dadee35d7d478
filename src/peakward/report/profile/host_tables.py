"""Tables of the host's effect on the GPU: waits, launches, the critical path."""

from peakward.records.profile import Profile, Waiting
from peakward.records.study import Column, Table
from peakward.report.profile.cells import NS, Row, share

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
