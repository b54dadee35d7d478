"""Makes the pages that `peakward devices` prints: the catalogue, and this machine."""

from collections.abc import Iterator, Sequence

from peakward.records.device import Device, PeerLink, SourcedFigure, spell
from peakward.records.measurement import Environment
from peakward.records.study import Cell, Column, Table, Unit
from peakward.report import provenance
from peakward.report.document import Document, Fact, Facts, TableBlock
from peakward.report.format import format_cell

COMPUTE_TYPES = ("fp32", "tf32", "fp16", "bf16", "fp8", "int8")


def catalogue(known: Sequence[Device], *, with_sources: bool) -> Document:
    """Every device with its figures, and where each was read."""
    columns = (
        Column(name="key"),
        Column(name="GB", unit="count"),
        *(Column(name=name, unit="count") for name in COMPUTE_TYPES),
        Column(name="GB/s", unit="count"),
    )
    table = Table(
        title="Dense peaks in TFLOP/s (int8: TOP/s), a multiply-add counted as two; bandwidth in GB/s",
        columns=columns,
        rows=tuple(_figures_row(each) for each in known),
    )
    blocks = [TableBlock(table=table), TableBlock(table=_boards(known))]
    if with_sources:
        blocks.append(TableBlock(table=_sources(known)))
    return Document(
        title="Devices",
        headline=f"{len(known)} catalogued; what nobody states is –, what is not here is unknown",
        blocks=tuple(blocks),
    )


def probe(where: Environment, device: Device | None, *, has_compiler: bool) -> Document:
    """This machine, and the catalogued device that it has."""
    facts = {
        "device": provenance.device(where),
        "catalogued as": "unknown" if device is None else f"{device.key} ({device.name})",
        "device UUID": where.device_uuid,
        "compute capability": where.compute_capability,
        "cores": str(where.n_cores),
        "C++ compiler": "found" if has_compiler else "none: compile cannot apply",
        "driver": where.driver,
        "CUDA": where.cuda,
        "torch": where.torch or "not installed",
        "triton": where.triton,
        "Python": where.python,
        "system": where.system,
    }
    named = tuple(Fact(name=name, value=value) for name, value in facts.items() if value)
    return Document(
        title="This machine", headline=provenance.device(where), blocks=(Facts(facts=named),)
    )


def peak(device: Device | None, compute_type: str) -> float | None:
    """The datasheet's rate of a compute type, or None where it states none."""
    figure = None if device is None else device.peak_flops_per_s.get(compute_type)
    return None if figure is None else figure.value


def _figures_row(device: Device) -> tuple[Cell, ...]:
    peaks = (peak(device, name) for name in COMPUTE_TYPES)
    in_tera = (None if each is None else each / 1e12 for each in peaks)
    return (device.key, device.memory_gb.value, *in_tera, _giga(device.bytes_per_s))


def _boards(known: Sequence[Device]) -> Table:
    """A row a device: which kernels it runs, what it may draw, and how it is connected."""
    return Table(
        title="Boards: compute capability (CC), power limit, links in GB/s in one direction",
        columns=(
            Column(name="key"),
            Column(name="CC"),
            Column(name="SMs", unit="count"),
            Column(name="W", unit="count"),
            Column(name="link"),
            Column(name="joins", unit="count"),
            Column(name="to all", unit="count"),
            Column(name="to one", unit="count"),
            Column(name="network", unit="count"),
            Column(name="to host", unit="count"),
        ),
        rows=tuple(_board_row(each) for each in known),
        note="to all: to all others that the link joins together; to one: to any one of them; "
        "network: between nodes, as sold; to host: over PCIe",
    )


def _board_row(device: Device) -> tuple[Cell, ...]:
    host = device.host_link
    return (
        device.key,
        None if device.compute_capability is None else spell(device.compute_capability.value),
        None if device.n_sms is None else device.n_sms.value,
        None if device.power_w is None else device.power_w.value,
        *_link_cells(device.link),
        None if device.network is None else _giga(device.network.bytes_per_s),
        None if host is None else _giga(host.bytes_per_s),
    )


def _link_cells(link: PeerLink | None) -> tuple[Cell, ...]:
    if link is None:
        return (None,) * 4
    pair = link.pair_bytes_per_s
    to_one = None if pair is None else _giga(pair)
    return (link.name, link.n_devices.value, _giga(link.bytes_per_s), to_one)


def _giga(figure: SourcedFigure) -> float:
    return figure.value / 1e9


def _sources(known: Sequence[Device]) -> Table:
    return Table(
        title="Sources",
        columns=(
            Column(name="key"),
            Column(name="figure"),
            Column(name="value"),
            Column(name="source"),
        ),
        rows=tuple((device.key, *row) for device in known for row in _sourced(device)),
    )


def _sourced(device: Device) -> Iterator[tuple[str, str, str]]:
    """Each figure's name, the figure, and where it was read."""
    for name, unit, figure in _figures(device):
        if figure is not None:
            yield name, format_cell(figure.value, unit), figure.source
    capability = device.compute_capability
    if capability is not None:
        yield "compute capability", spell(capability.value), capability.source


def _figures(device: Device) -> Iterator[tuple[str, Unit, SourcedFigure | None]]:
    yield "memory (GB)", "count", device.memory_gb
    for name, figure in device.peak_flops_per_s.items():
        yield name, "flops_per_s", figure
    yield "bandwidth", "bytes_per_s", device.bytes_per_s
    yield "L2", "bytes", device.l2_bytes
    yield "SMs", "count", device.n_sms
    yield "power (W)", "count", device.power_w
    if (link := device.link) is not None:
        yield f"{link.name}, to all", "bytes_per_s", link.bytes_per_s
        yield f"{link.name}, to one", "bytes_per_s", link.pair_bytes_per_s
        yield f"{link.name}, joins", "count", link.n_devices
    if (network := device.network) is not None:
        yield f"{network.name}, between nodes", "bytes_per_s", network.bytes_per_s
    if (host := device.host_link) is not None:
        yield host.name, "bytes_per_s", host.bytes_per_s
