"""The catalogue and this machine, in print."""

import json

import msgspec
import pytest

from peakward.cli.main import main
from peakward.hardware.devices import device, devices
from peakward.lab.measure import nvml, probe
from peakward.lab.measure.isolated import Workers
from peakward.lab.parallel.launch import expect_devices
from peakward.records import codec
from peakward.records.calibration import SUBJECTS, Calibration, LaunchCost, Rates
from peakward.records.errors import PeakwardError
from peakward.records.parallel import CollectiveTime, LinkCalibration, LinkFit
from peakward.report import devices as devices_page
from peakward.report.document import Facts, TableBlock
from peakward.store.database import Store


def rows_by_key(block):
    assert isinstance(block, TableBlock)
    names = [column.name for column in block.table.columns]
    return {row[0]: dict(zip(names, row, strict=True)) for row in block.table.rows}


def test_the_list_has_every_device_and_what_nobody_states_stays_empty():
    page = devices_page.catalogue(devices(), with_sources=False)
    rates, boards = map(rows_by_key, page.blocks)
    assert list(rates) == list(boards) == [each.key for each in devices()]
    peak = device("h100-sxm-80").peak_flops_per_s["bf16"].value
    assert rates["h100-sxm-80"]["bf16"] == peak / 1e12
    assert rates["v100-sxm2-16"]["bf16"] is None
    assert boards["rtx-5090-32"]["CC"] == "12.0"
    assert boards["mi300x-192"]["CC"] is None
    assert (boards["mi300x-192"]["to all"], boards["mi300x-192"]["to one"]) == (448, 64)
    assert (boards["l4-24"]["link"], boards["l4-24"]["to host"]) == (None, 32)


def test_with_sources_every_figure_names_its_own(capsys):
    page = devices_page.catalogue(devices(), with_sources=True)
    table = page.blocks[2].table
    assert {row[0] for row in table.rows} == {each.key for each in devices()}
    assert all(row[3] for row in table.rows)
    power = device("h200-141").power_w
    assert ("h200-141", "power (W)", "700", power.source) in table.rows
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


COST = LaunchCost(side="host", operation="matmul", call_s=1e-6)


@pytest.fixture
def workers(monkeypatch):
    """Workers that answer without measuring; what they were asked for."""
    asked = []

    def calibrate(self, device_type):
        asked.append("ceilings")
        return Calibration(
            environment=probe.environment(device_type),
            started_at="2026-01-01T00:00:00+00:00",
            wall_s=1.0,
            matmul=(),
            copy_bytes_per_s=1e10,
            copy_size_bytes=2**20,
        )

    def rates(self, subject, device_type):
        asked.append(subject)
        return Rates(launches=(COST,) if subject == "launches" else ())

    monkeypatch.setattr(Workers, "calibrate", calibrate)
    monkeypatch.setattr(Workers, "rates", rates)
    return asked


CALIBRATE = ("devices", "calibrate", "--device", "cpu")


def test_calibrate_measures_in_full_stores_and_prints(workers, tmp_path, monkeypatch, capsysbinary):
    monkeypatch.chdir(tmp_path)
    assert main([*CALIBRATE, "--json"]) == 0
    assert workers == ["ceilings", *SUBJECTS]
    printed = codec.from_json(capsysbinary.readouterr().out, Calibration)
    assert printed.rates == Rates(launches=(COST,))
    with Store.open_read_only(tmp_path / "peakward.db") as store:
        assert store.calibration(printed.environment.key) == printed
    assert main(CALIBRATE) == 0
    assert "LAUNCH COSTS" in capsysbinary.readouterr().out.decode()


LINKS = LinkCalibration(
    started_at="2026-01-01T00:00:00+00:00",
    wall_s=1.0,
    device_name="cpu",
    n_ranks=2,
    backend="gloo",
    torch="2.11",
    times=(
        CollectiveTime(collective="all-reduce", n_bytes=10**6, time_s=0.001, bus_bytes_per_s=1e9),
    ),
    fits=(LinkFit(collective="all-reduce", latency_s=1e-5, bus_bytes_per_s=1e9, worst_error=0.02),),
)


def test_of_several_ranks_collectives_are_added_to_what_is_stored(
    workers, tmp_path, monkeypatch, capsysbinary
):
    asked = []

    def calibrate(n_ranks, device):
        asked.append((n_ranks, device))
        return msgspec.structs.replace(LINKS, n_ranks=n_ranks, wall_s=float(len(asked)))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("peakward.lab.parallel.measured.calibrate", calibrate)
    for n in ("2", "4", "2"):
        assert main([*CALIBRATE, "--gpus", n, "--json"]) == 0
    assert asked == [(2, "cpu"), (4, "cpu"), (2, "cpu")]
    assert workers == ["ceilings", *SUBJECTS]  # A full calibration was stored by the first.
    printed = codec.from_json(capsysbinary.readouterr().out.splitlines()[-1], Calibration)
    assert [(each.n_ranks, each.wall_s) for each in printed.collectives] == [(2, 3.0), (4, 2.0)]
    assert printed.rates == Rates(launches=(COST,))
    with Store.open_read_only(tmp_path / "peakward.db") as store:
        assert store.calibration(printed.environment.key) == printed
    assert main([*CALIBRATE, "--gpus", "2"]) == 0
    page = capsysbinary.readouterr().out.decode()
    assert "COLLECTIVES BETWEEN 2 PROCESSES ON ONE CPU, GLOO" in page
    assert "10.0 µs  1.00 GB/s" in page


def test_more_ranks_than_gpus_are_refused(monkeypatch):
    names = ["NVIDIA H100 80GB HBM3"]
    monkeypatch.setattr(nvml, "visible_names", lambda: tuple(names))
    with pytest.raises(PeakwardError, match="expected a GPU for each of 2 ranks, got 1"):
        expect_devices(2, "cuda")
    names.append("NVIDIA L4")
    with pytest.raises(PeakwardError, match="GPUs of one kind, got NVIDIA H100 80GB HBM3, NVIDIA"):
        expect_devices(2, "cuda")
    names[1] = names[0]
    expect_devices(2, "cuda")
    expect_devices(8, "cpu")


def test_ctrl_c_ends_a_calibration_and_stores_none(workers, tmp_path, monkeypatch):
    def rates(self, subject, device_type):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Workers, "rates", rates)
    assert main(CALIBRATE) == 130
    with Store.open_read_only(tmp_path / "peakward.db") as store:
        assert store.calibration(probe.environment("cpu").key) is None


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("NVIDIA A100-PG509-200", ["a100-sxm-40"]),
        ("AMD Instinct MI300X VF", ["mi300x-192"]),
        ("NVIDIA H100 80GB HBM3", ["h100-sxm-80"]),
        ("h100", ["h100-sxm-80", "h100-pcie-80"]),
    ],
)
def test_a_device_s_own_name_finds_its_rows(name, keys, capsys):
    assert main(["devices", "list", name, "--json"]) == 0
    assert [each["key"] for each in json.loads(capsys.readouterr().out)] == keys


def test_a_name_is_for_the_list_alone(capsys):
    assert main(["devices", "probe", "h100"]) == 2
    assert "expected no device beside probe, got 'h100'" in capsys.readouterr().err
