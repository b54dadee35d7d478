"""The report of an allocator snapshot: a screen, or everything, and its tables."""

from collections.abc import Sequence

from peakward.records.memory_snapshot import (
    DeviceMemory,
    MemoryBalance,
    MemoryPeak,
    MemoryReport,
    MemoryShare,
    OutOfMemory,
)
from peakward.records.study import Column, Plot, Point, Series, Table
from peakward.report.document import (
    Block,
    Document,
    Fact,
    Facts,
    Items,
    Note,
    PlotBlock,
    Section,
    TableBlock,
)
from peakward.report.format import format_cell

TOP = 8
"""The number of stacks on the one screen."""
CONVENTIONS = (
    "Allocated counts blocks, as torch.cuda.memory_allocated does; requested is what the "
    "program asked for; reserved is all segments. GiB is 2**30 bytes.",
    "Memory at any moment is computed backwards from the end, which the segments show, "
    "because torch's history is a ring buffer that may have lost its beginning.",
    "A stack's line is its innermost line outside torch, Python's library and generated code.",
)


def summary(found: MemoryReport) -> Document:
    """The use of the memory, on one screen."""
    blocks: list[Block] = [*_opening(found)]
    for device in found.devices:
        blocks += _filled(balances(device))
        if device.peak is not None:
            blocks += _filled(categories(device.peak))
            blocks += _filled(places(device.peak))
            blocks += _filled(holders(device.peak, TOP))
        blocks += [Note(text=verdict(each)) for each in device.ooms]
    return Document(
        title=found.source, headline=_headline(found), blocks=(*blocks, *_missing(found))
    )


def whole(found: MemoryReport) -> Document:
    """All contents of the record."""
    return Document(
        title=found.source,
        headline=_headline(found),
        blocks=(*_opening(found), *_missing(found)),
        sections=(
            *(_device(each) for each in found.devices),
            Section(
                title="Method",
                blocks=(Items(texts=(*CONVENTIONS, *found.evidence)),),
            ),
        ),
    )


def _device(found: DeviceMemory) -> Section:
    blocks: list[Block] = [*_filled(balances(found))]
    if found.timeline:
        blocks.append(PlotBlock(plot=_timeline(found)))
    if found.peak is not None:
        blocks += _filled(categories(found.peak))
        blocks += _filled(places(found.peak))
        blocks += _filled(holders(found.peak, len(found.peak.holders)))
    blocks += _filled(segments(found))
    blocks += _filled(churn(found)) if found.n_events else []
    blocks += _filled(ooms(found))
    blocks += [Note(text=verdict(each)) for each in found.ooms]
    return Section(title=f"GPU {found.device}", blocks=tuple(blocks))


def _timeline(found: DeviceMemory) -> Plot:
    points = found.timeline
    return Plot(
        title="Memory over the recording",
        kind="lines",
        x_label="since the first event",
        y_label="bytes",
        x_unit="s",
        y_unit="bytes",
        series=(
            Series(
                name="reserved",
                points=tuple(Point(x=each.at_s, y=each.reserved_bytes) for each in points),
            ),
            Series(
                name="allocated",
                points=tuple(Point(x=each.at_s, y=each.allocated_bytes) for each in points),
            ),
        ),
    )


def _headline(found: MemoryReport) -> str:
    """The headline of the device that held most."""
    if not found.devices:
        return "no memory was held and nothing recorded"
    most = max(found.devices, key=lambda each: each.most_reserved_bytes)
    name = f"GPU {most.device}: " if len(found.devices) > 1 else ""
    reserved = format_cell(most.most_reserved_bytes, "bytes")
    if most.peak is None:
        allocated = format_cell(most.end.allocated_bytes, "bytes")
        return f"{name}{allocated} allocated, {reserved} reserved at the end"
    allocated = format_cell(most.peak.balance.allocated_bytes, "bytes")
    failed = f"; {len(most.ooms)} out of memory" if most.ooms else ""
    return f"{name}peak {allocated} allocated, {reserved} reserved{failed}"


def _opening(found: MemoryReport) -> tuple[Block, ...]:
    facts = [("settings", found.settings)]
    for each in found.devices:
        name = f"GPU {each.device}"
        recorded = format_cell(each.recorded_s, "s")
        facts.append((name, f"{each.n_events:,} events in {recorded}"))
        if each.peak is not None:
            within = f", in {' > '.join(each.peak.ranges)}" if each.peak.ranges else ""
            facts.append((f"{name}, peak", f"at {format_cell(each.peak.at_s, 's')}{within}"))
        agreed = each.check.n_sizes_checked - each.check.n_sizes_wrong
        exact = not (each.check.n_contradicting_events or each.check.n_contradicting_blocks)
        if each.n_events:
            said = "agree" if exact else "contradict one another"
            text = f"events and segments {said}"
            if each.check.n_sizes_checked:
                text += f"; {agreed:,} of {each.check.n_sizes_checked:,} derived block sizes agree"
            facts.append((f"{name}, check", text))
    return (Facts(facts=tuple(Fact(name=name, value=text) for name, text in facts if text)),)


def _missing(found: MemoryReport) -> tuple[Block, ...]:
    return tuple(Note(text=each) for each in found.incomplete)


def _filled(table: Table) -> list[Block]:
    return [TableBlock(table=table, sortable=True)] if table.rows else []


PLACES = {
    "weights": "building or moving modules",
    "forward": "a module's forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimiser's step",
    "elsewhere": "other lines of Python",
    "no_stack": "no stack tells",
}


def balances(found: DeviceMemory) -> Table:
    """The memory held at the start, the peak and the end."""
    moments = [("start of the recording", found.start)] if found.n_events else []
    moments += [("peak", found.peak.balance)] if found.peak else []
    moments += [("end", found.end)]
    return Table(
        title="Memory held",
        columns=(
            Column(name="moment", unit="name"),
            *(Column(name=name, unit="bytes") for name in ("allocated", "requested", "reserved")),
            Column(name="free in segments", unit="bytes"),
            Column(name="share in use", unit="share"),
        ),
        rows=tuple((name, *_balance(each)) for name, each in moments),
    )


def _balance(found: MemoryBalance) -> tuple[int | float | None, ...]:
    reserved = found.reserved_bytes
    return (
        found.allocated_bytes,
        found.requested_bytes,
        reserved,
        reserved - found.active_bytes,
        found.allocated_bytes / reserved if reserved else None,
    )


def categories(peak: MemoryPeak) -> Table:
    """The categories of the peak, as far as stacks tell."""
    named = [(each.name.replace("_", " "), each) for each in peak.categories]
    return _shares("Peak by category", "category", named, peak)


def places(peak: MemoryPeak) -> Table:
    """The parts of the program that made the peak's allocations."""
    named = [(PLACES[each.name], each) for each in peak.places]
    return _shares("Peak by part of the program", "made in", named, peak)


def _shares(
    title: str, heading: str, named: Sequence[tuple[str, MemoryShare]], peak: MemoryPeak
) -> Table:
    whole = peak.balance.allocated_bytes
    return Table(
        title=title,
        columns=(
            Column(name=heading, unit="name"),
            Column(name="allocations", unit="count"),
            Column(name="bytes", unit="bytes"),
            Column(name="share", unit="share"),
        ),
        rows=tuple(
            (name, each.n, each.n_bytes, each.n_bytes / whole if whole else None)
            for name, each in named
        ),
    )


def holders(peak: MemoryPeak, most: int) -> Table:
    """The stacks that made most of the peak."""
    shown = peak.holders[:most]
    title = f"The {len(shown)} of {peak.n_holders:,} stacks that hold most at the peak"
    if len(shown) == peak.n_holders:
        title = "Stacks by memory at the peak"
    return Table(
        title=title,
        columns=(
            Column(name="line of the program", unit="name"),
            Column(name="category"),
            Column(name="n", unit="count"),
            Column(name="bytes", unit="bytes"),
            Column(name="largest", unit="bytes"),
        ),
        rows=tuple(
            (
                line(each.source),
                each.category.replace("_", " "),
                each.n,
                each.n_bytes,
                each.largest_bytes,
            )
            for each in shown
        ),
    )


def line(source: str | None) -> str:
    """The last two parts of the line's path, and its remainder."""
    if source is None:
        return "no line of Python"
    path, colon, rest = source.rpartition(":") if ".py:" in source else (source, "", "")
    return "/".join(path.replace("\\", "/").split("/")[-2:]) + colon + rest


def segments(found: DeviceMemory) -> Table:
    """The segments at the end, and the free memory in them."""
    return Table(
        title="Segments at the end",
        columns=(
            Column(name="segments of", unit="name"),
            Column(name="n", unit="count"),
            *(Column(name=name, unit="bytes") for name in ("reserved", "allocated", "free")),
            Column(name="largest free", unit="bytes"),
            Column(name="split free blocks", unit="count"),
            Column(name="bytes in them", unit="bytes"),
        ),
        rows=tuple(
            (
                each.name,
                each.n,
                each.reserved_bytes,
                each.allocated_bytes,
                each.free_bytes,
                each.largest_free_bytes,
                each.n_split,
                each.split_bytes,
            )
            for each in found.segments
        ),
        note="A split free block shares its segment with blocks in use, so only requests that fit "
        "into it can use it.",
    )


def churn(found: DeviceMemory) -> Table:
    """The activity of the allocator."""
    done = found.churn
    rates = found.recorded_s or None
    counts = (
        ("allocations", done.n_allocs),
        ("frees", done.n_frees),
        ("device allocations (cudaMalloc, mapping)", done.n_device_allocs),
        ("device frees", done.n_device_frees),
        ("retries after freeing cached segments", done.n_retries),
    )
    return Table(
        title="Allocator activity",
        columns=(
            Column(name="what", unit="name"),
            Column(name="n", unit="count"),
            Column(name="a second", unit="count"),
            Column(name="a step", unit="count"),
        ),
        rows=tuple(
            (
                name,
                n,
                None if rates is None else round(n / rates, 1),
                None if done.n_steps is None else round(n / done.n_steps, 1),
            )
            for name, n in counts
        ),
    )


def ooms(found: DeviceMemory) -> Table:
    """Allocations that failed."""
    return Table(
        title="Out of memory",
        columns=(
            Column(name="at", unit="s"),
            Column(name="needed", unit="bytes"),
            Column(name="free on the device", unit="bytes"),
            Column(name="free in segments", unit="bytes"),
            Column(name="largest piece", unit="bytes"),
            Column(name="allocated", unit="bytes"),
            Column(name="reserved", unit="bytes"),
        ),
        rows=tuple(
            (
                each.at_s,
                each.needed_bytes,
                each.device_free_bytes,
                each.cached_free_bytes,
                each.largest_free_bytes,
                each.balance.allocated_bytes,
                each.balance.reserved_bytes,
            )
            for each in found.ooms
        ),
    )


def verdict(found: OutOfMemory) -> str:
    """The reason for a failed allocation, in a sentence."""
    where = "" if found.source is None else f", asked at {line(found.source)}"
    if found.was_fragmented:
        why = "the free memory would have sufficed in one piece: fragmentation"
    else:
        why = "the free memory would not have sufficed even in one piece"
    if found.was_limited:
        why += "; the device had enough, so a limit on the process was in the way"
    return f"At {found.at_s:.3g} s{where}: {why}."
