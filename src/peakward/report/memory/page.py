"""The report of an allocator snapshot: a screen, or everything."""

from peakward.records.memory_snapshot import DeviceMemory, MemoryReport
from peakward.records.study import Plot, Point, Series, Table
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
from peakward.report.memory import tables

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
        blocks += _filled(tables.balances(device))
        if device.peak is not None:
            blocks += _filled(tables.categories(device.peak))
            blocks += _filled(tables.places(device.peak))
            blocks += _filled(tables.holders(device.peak, TOP))
        blocks += [Note(text=tables.verdict(each)) for each in device.ooms]
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
    blocks: list[Block] = [*_filled(tables.balances(found))]
    if found.timeline:
        blocks.append(PlotBlock(plot=_timeline(found)))
    if found.peak is not None:
        blocks += _filled(tables.categories(found.peak))
        blocks += _filled(tables.places(found.peak))
        blocks += _filled(tables.holders(found.peak, len(found.peak.holders)))
    blocks += _filled(tables.segments(found))
    blocks += _filled(tables.churn(found)) if found.n_events else []
    blocks += _filled(tables.ooms(found))
    blocks += [Note(text=tables.verdict(each)) for each in found.ooms]
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
