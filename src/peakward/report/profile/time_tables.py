"""Tables of a GPU's time and idle causes."""

from peakward.records.profile import IDLE_CAUSES, DeviceTime, Profile
from peakward.records.study import Column, Table
from peakward.report.profile.cells import NS, Row, share
from peakward.report.profile.wording import wording


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
