"""Makes the page of a calibration, which `peakward devices calibrate` prints; each subject is a section."""

from collections.abc import Iterator

from peakward.records.calibration import KINDS, SUBJECTS, Calibration, Rates, Subject
from peakward.records.device import Device
from peakward.records.parallel import LinkCalibration
from peakward.records.study import Cell, Column, Table
from peakward.report import provenance
from peakward.report.devices import peak
from peakward.report.document import Document, Fact, Facts, Note, Section, TableBlock
from peakward.report.format import format_cell, format_duration

TITLES: dict[Subject, str] = {
    "products": "Matrix products by shape",
    "traffic": "Bandwidth by size",
    "launches": "Launch costs",
    "attention": "Attention",
    "levels": "Levels of memory",
    "latency": "Latency of loads",
    "link": "Host link",
    "disk": "Disk",
}


def calibration(measured: Calibration, device: Device | None) -> Document:
    """Measured ceilings, beside the datasheet's where the device is known; then the rates, if any."""
    columns = (
        Column(name="compute type"),
        Column(name="best matmul", unit="flops_per_s"),
        Column(name="m = n = k", unit="count"),
        Column(name="datasheet", unit="flops_per_s"),
        Column(name="share", unit="share"),
    )
    rows = tuple(
        (rate.compute_type, rate.flops_per_s, rate.size, said, _share(rate.flops_per_s, said))
        for rate in measured.matmul
        for said in [peak(device, rate.compute_type)]
    )
    copy = f"{format_cell(measured.copy_bytes_per_s, 'bytes_per_s')} read and written"
    said = None if device is None else device.bytes_per_s.value
    if said is not None:
        copy += f"; datasheet {format_cell(said, 'bytes_per_s')}"
    return Document(
        title="Measured ceilings" if measured.rates is None else "Measured rates",
        headline=provenance.device(measured.environment),
        blocks=(
            Facts(
                facts=(
                    Fact(name="copy", value=copy),
                    Fact(name="took", value=format_duration(measured.wall_s)),
                )
            ),
            *(Note(text=text) for text in provenance.ceiling_doubts(measured)),
        ),
        sections=(
            Section(
                title="Best square products",
                blocks=(TableBlock(table=Table(title="Rates", columns=columns, rows=rows)),),
            ),
            *(() if measured.rates is None else sections(measured.rates)),
            *map(collectives, measured.collectives),
        ),
    )


def _share(part: float, whole: float | None) -> float | None:
    return None if whole is None else part / whole


def sections(rates: Rates) -> tuple[Section, ...]:
    """Each subject with its figures, then what is missing and why, and what is doubtful."""
    tables = _tables(rates)
    found = [
        Section(title=TITLES[subject], blocks=(TableBlock(table=tables[subject]),))
        for subject in SUBJECTS
        if tables[subject].rows
    ]
    if rates.absent:
        found.append(Section(title="Not measured", blocks=(TableBlock(table=_absent(rates)),)))
    if rates.doubts:
        notes = tuple(
            Note(text=f"{doubt[:1].upper()}{doubt[1:]}: its figures may be too slow.")
            for doubt in rates.doubts
        )
        found.append(Section(title="Doubts", blocks=notes))
    return tuple(found)


def collectives(measured: LinkCalibration) -> Section:
    """Rates by size and the fitted model."""
    kinds = tuple(dict.fromkeys(each.collective for each in measured.times))
    found = {(each.n_bytes, each.collective): each for each in measured.times}
    rows = []
    for size in sorted({each.n_bytes for each in measured.times}):
        here = [found.get((size, kind)) for kind in kinds]
        rows.append(
            (size / 1e6, *(None if each is None else each.bus_bytes_per_s for each in here))
        )
    rates = Table(
        title="Bytes that each rank sends at least, over the time, by size",
        columns=(
            Column(name="MB", unit="count"),
            *(Column(name=kind, unit="bytes_per_s") for kind in kinds),
        ),
        rows=tuple(rows),
    )
    fits = Table(
        title="Fitted: latency + bytes on the bus / rate",
        columns=(
            Column(name="collective", unit="name"),
            Column(name="latency", unit="s"),
            Column(name="rate", unit="bytes_per_s"),
            Column(name="largest error", unit="share"),
        ),
        rows=tuple(
            (each.collective, each.latency_s, each.bus_bytes_per_s, each.worst_error)
            for each in measured.fits
        ),
    )
    between = f"{measured.n_ranks} × {measured.device_name}, {measured.backend}"
    if measured.device_name == "cpu":
        between = f"{measured.n_ranks} processes on one CPU, {measured.backend}"
    return Section(
        title=f"Collectives between {between}",
        blocks=(TableBlock(table=rates), TableBlock(table=fits)),
    )


def _tables(rates: Rates) -> dict[Subject, Table]:
    return {
        "products": _products(rates),
        "traffic": _traffic(rates),
        "launches": _launches(rates),
        "attention": _attention(rates),
        "levels": _levels(rates),
        "latency": _latency(rates),
        "link": _link(rates),
        "disk": _disk(rates),
    }


def _products(rates: Rates) -> Table:
    """A row a shape, a column a compute type."""
    names = tuple(dict.fromkeys(rate.compute_type for rate in rates.products))
    seen = dict.fromkeys((rate.kind, rate.m, rate.n, rate.k) for rate in rates.products)
    shapes = sorted(seen, key=lambda shape: KINDS.index(shape[0]))
    measured = {
        (rate.kind, rate.m, rate.n, rate.k, rate.compute_type): rate.flops_per_s
        for rate in rates.products
    }
    return Table(
        title="Median rate of [m, k] × [k, n]",
        columns=(
            Column(name="shape", unit="name"),
            *(Column(name=name, unit="count") for name in "mnk"),
            *(Column(name=name, unit="flops_per_s") for name in names),
        ),
        rows=tuple((*shape, *(measured.get((*shape, name)) for name in names)) for shape in shapes),
    )


def _traffic(rates: Rates) -> Table:
    measured = {(rate.size_bytes, rate.operation): rate.bytes_per_s for rate in rates.traffic}
    return Table(
        title="Bytes read and written, over fp32 tensors of a size each",
        columns=(
            Column(name="tensor", unit="bytes"),
            Column(name="copy", unit="bytes_per_s"),
            Column(name="add", unit="bytes_per_s"),
        ),
        rows=tuple(
            (size, measured.get((size, "copy")), measured.get((size, "add")))
            for size in sorted({rate.size_bytes for rate in rates.traffic})
        ),
    )


def _launches(rates: Rates) -> Table:
    return Table(
        title="Time of an operator on 16 × 16 elements",
        columns=(
            Column(name="side", unit="name"),
            Column(name="operation", unit="name"),
            Column(name="a call", unit="s"),
        ),
        rows=tuple((each.side, each.operation, each.call_s) for each in rates.launches),
    )


def _attention(rates: Rates) -> Table:
    """A row a type and size, a column a pass."""
    measured: dict[tuple[Cell, ...], dict[str, float]] = {}
    for rate in rates.attention:
        size = (rate.batch_size, rate.n_heads, rate.seq_len, rate.head_dim)
        measured.setdefault((rate.compute_type, *size), {})[rate.pass_] = rate.flops_per_s
    return Table(
        title="Model FLOPs of causal scaled_dot_product_attention over its time",
        columns=(
            Column(name="compute type", unit="name"),
            Column(name="batch", unit="count"),
            Column(name="heads", unit="count"),
            Column(name="length", unit="count"),
            Column(name="head width", unit="count"),
            Column(name="forward", unit="flops_per_s"),
            Column(name="backward", unit="flops_per_s"),
        ),
        rows=tuple(
            (*key, passes.get("forward"), passes.get("backward"))
            for key, passes in measured.items()
        ),
    )


def _levels(rates: Rates) -> Table:
    return Table(
        title="Bytes read a second, by working set",
        columns=(
            Column(name="working set", unit="bytes"),
            Column(name="level"),
            Column(name="which holds", unit="bytes"),
            Column(name="read", unit="bytes_per_s"),
        ),
        rows=tuple(
            (each.working_set_bytes, each.level, each.capacity_bytes, each.bytes_per_s)
            for each in rates.levels
        ),
    )


def _latency(rates: Rates) -> Table:
    return Table(
        title="A load that waits for the one before it, by working set",
        columns=(
            Column(name="working set", unit="bytes"),
            Column(name="level"),
            Column(name="a load", unit="s"),
        ),
        rows=tuple((each.working_set_bytes, each.level, each.load_s) for each in rates.latency),
    )


def _link(rates: Rates) -> Table:
    return Table(
        title="Copies between the host's memory and the GPU's",
        columns=(
            Column(name="host memory", unit="name"),
            Column(name="direction", unit="name"),
            Column(name="size", unit="bytes"),
            Column(name="rate", unit="bytes_per_s"),
        ),
        rows=tuple(
            (each.memory, each.direction, each.size_bytes, each.bytes_per_s) for each in rates.link
        ),
    )


def _disk(rates: Rates) -> Table:
    return Table(
        title="Reading a file in the working directory, block by block",
        columns=(
            Column(name="from", unit="name"),
            Column(name="file", unit="bytes"),
            Column(name="block", unit="bytes"),
            Column(name="rate", unit="bytes_per_s"),
        ),
        rows=tuple(
            (each.source, each.size_bytes, each.block_bytes, each.bytes_per_s)
            for each in rates.disk
        ),
    )


def _absent(rates: Rates) -> Table:
    def rows() -> Iterator[tuple[Cell, ...]]:
        for each in rates.absent:
            yield TITLES[each.subject], each.figure or "all", each.reason

    return Table(
        title="Absent figures",
        columns=(
            Column(name="subject", unit="name"),
            Column(name="figure", unit="name"),
            Column(name="reason"),
        ),
        rows=tuple(rows()),
    )
