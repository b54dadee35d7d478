"""The catalogue and this machine, in print."""

import json

import msgspec

from peakward.catalogue.devices import device, devices
from peakward.cli import devices_page
from peakward.cli.main import main
from peakward.records.calibration import Calibration, MatmulRate
from peakward.report.document import Facts, TableBlock


def test_the_list_has_every_device_and_what_nobody_states_stays_empty():
    page = devices_page.catalogue(devices(), with_sources=False)
    (block,) = page.blocks
    assert isinstance(block, TableBlock)
    assert [row[0] for row in block.table.rows] == [each.key for each in devices()]
    names = [column.name for column in block.table.columns]
    rows = {row[0]: dict(zip(names, row, strict=True)) for row in block.table.rows}
    peak = device("h100-sxm-80").peak_flops_per_s["bf16"].value
    assert rows["h100-sxm-80"]["bf16"] == peak / 1e12
    assert rows["v100-sxm2-16"]["bf16"] is None


def test_with_sources_every_figure_names_its_own(capsys):
    page = devices_page.catalogue(devices(), with_sources=True)
    table = page.blocks[1].table
    assert {row[0] for row in table.rows} == {each.key for each in devices()}
    assert all(row[3] for row in table.rows)
    assert main(["devices", "--sources"]) == 0
    assert "h200-141" in capsys.readouterr().out


def test_json_is_the_rows(capsysbinary):
    assert main(["devices", "list", "--json"]) == 0
    rows = json.loads(capsysbinary.readouterr().out)
    assert [row["key"] for row in rows] == [each.key for each in devices()]


def test_an_unknown_device_is_said_to_be_unknown(capsysbinary):
    assert main(["devices", "probe", "--device", "cpu", "--json"]) == 0
    record = json.loads(capsysbinary.readouterr().out)["record"]
    assert record["environment"]["device_type"] == "cpu"
    assert record["device"] is None
    assert main(["devices", "probe", "--device", "cpu"]) == 0
    assert b"unknown" in capsysbinary.readouterr().out


def facts(page):
    return {
        fact.name: fact.value
        for block in page.blocks
        if isinstance(block, Facts)
        for fact in block.facts
    }


def test_a_known_device_is_named(make_measurement):
    where = msgspec.structs.replace(make_measurement().environment, device_type="cuda")
    page = devices_page.probe(where, device("h200-141"), has_compiler=True)
    assert facts(page)["catalogued as"] == f"h200-141 ({device('h200-141').name})"


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
    page = devices_page.calibration(measured, known)
    table = page.sections[0].blocks[0].table
    peak = known.peak_flops_per_s["bf16"].value
    assert table.rows[0] == ("bf16", 5e14, 8192, peak, 5e14 / peak)
    assert table.rows[1] == ("odd", 1e12, 8192, None, None)
    assert "datasheet" in facts(page)["copy"]
    assert "datasheet" not in facts(devices_page.calibration(measured, None))["copy"]
    doubtful = msgspec.structs.replace(measured, doubts=("the GPU was busy",))
    *_, said = devices_page.calibration(doubtful, known).blocks
    assert said.text.startswith("When the ceilings were measured, the GPU was busy: ")
