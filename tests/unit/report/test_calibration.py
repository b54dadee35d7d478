"""A calibration in print: the ceilings, and the rates where there are some."""

import msgspec

from peakward.hardware.devices import device
from peakward.records.calibration import Absence, Calibration, MatmulRate, Rates
from peakward.report import calibration as calibration_page
from peakward.report.document import Facts


def facts(page):
    return {
        fact.name: fact.value
        for block in page.blocks
        if isinstance(block, Facts)
        for fact in block.facts
    }


def test_measured_ceilings_stand_beside_the_datasheets(make_measurement):
    measured = Calibration(
        environment=make_measurement().environment,
        started_at="2026-01-01T00:00:00+00:00",
        wall_s=3.0,
        matmul=(
            MatmulRate(compute_type="bf16", size=8192, flops_per_s=5e14),
            MatmulRate(compute_type="odd", size=8192, flops_per_s=1e12),
        ),
        copy_bytes_per_s=4e12,
        copy_size_bytes=2**30,
    )
    known = device("h200-141")
    page = calibration_page.calibration(measured, known)
    table = page.sections[0].blocks[0].table
    peak = known.peak_flops_per_s["bf16"].value
    assert table.rows[0] == ("bf16", 5e14, 8192, peak, 5e14 / peak)
    assert table.rows[1] == ("odd", 1e12, 8192, None, None)
    assert "datasheet" in facts(page)["copy"]
    assert "datasheet" not in facts(calibration_page.calibration(measured, None))["copy"]
    doubtful = msgspec.structs.replace(measured, doubts=("the GPU was busy",))
    *_, said = calibration_page.calibration(doubtful, known).blocks
    assert said.text.startswith("When the ceilings were measured, the GPU was busy: ")
    assert page.title == "Measured ceilings"


def test_rates_follow_the_ceilings(make_measurement):
    measured = Calibration(
        environment=make_measurement().environment,
        started_at="2026-01-01T00:00:00+00:00",
        wall_s=3.0,
        matmul=(),
        copy_bytes_per_s=4e12,
        copy_size_bytes=2**30,
        rates=Rates(absent=(Absence(subject="disk", reason="full"),)),
    )
    page = calibration_page.calibration(measured, None)
    assert page.title == "Measured rates"
    assert [each.title for each in page.sections] == ["Best square products", "Not measured"]
