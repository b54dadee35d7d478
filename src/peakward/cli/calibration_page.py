"""What `peakward devices calibrate` prints: the document of a calibration."""

from peakward.cli import rates_sections
from peakward.cli.devices_page import peak
from peakward.records.calibration import Calibration
from peakward.records.device import Device
from peakward.records.study import Column, Table
from peakward.report import provenance
from peakward.report.document import Document, Fact, Facts, Note, Section, TableBlock
from peakward.report.format import format_cell, format_duration


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
            *(() if measured.rates is None else rates_sections.sections(measured.rates)),
        ),
    )


def _share(part: float, whole: float | None) -> float | None:
    return None if whole is None else part / whole
