"""What `peakward devices` prints: documents of catalogue rows and a probe."""

from collections.abc import Iterator, Sequence

from peakward.records.device import Device, Figure
from peakward.records.environment import Environment
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
    blocks = [TableBlock(table=table)]
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
    return (device.key, device.memory_gb.value, *in_tera, device.bytes_per_s.value / 1e9)


def _sources(known: Sequence[Device]) -> Table:
    return Table(
        title="Sources",
        columns=(
            Column(name="key"),
            Column(name="figure"),
            Column(name="value"),
            Column(name="source"),
        ),
        rows=tuple(
            (device.key, name, format_cell(figure.value, unit), figure.source)
            for device in known
            for name, unit, figure in _figures(device)
        ),
    )


def _figures(device: Device) -> Iterator[tuple[str, Unit, Figure]]:
    yield "memory (GB)", "count", device.memory_gb
    for name, figure in device.peak_flops_per_s.items():
        yield name, "flops_per_s", figure
    yield "bandwidth", "bytes_per_s", device.bytes_per_s
    optional: tuple[tuple[str, Unit, Figure | None], ...] = (
        ("L2", "bytes", device.l2_bytes),
        ("SMs", "count", device.n_sms),
        ("link", "bytes_per_s", device.link_bytes_per_s),
    )
    for name, unit, maybe in optional:
        if maybe is not None:
            yield name, unit, maybe
