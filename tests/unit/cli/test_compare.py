"""The regression gate, through its command line."""

import json

import msgspec
import pytest

from peakward.cli.main import main
from peakward.records import codec
from peakward.store.database import Store


@pytest.fixture
def write(in_tmp):
    def to_file(name, study):
        (in_tmp / name).write_bytes(codec.to_json(study))
        return name

    return to_file


def test_the_exit_code_says_whether_a_case_got_slower(write, make_study, make_measurement, capsys):
    before = write("before.json", make_study(make_measurement(8)))
    slower = write("slower.json", make_study(make_measurement(8, 1.1e-3)))
    faster = write("faster.json", make_study(make_measurement(8, 0.9e-3)))
    broken = write("broken.json", make_study(make_measurement(8, None)))
    assert main(["compare", before, before]) == 0
    assert main(["compare", before, faster]) == 0
    assert main(["compare", before, slower]) == 1
    assert main(["compare", before, broken]) == 1
    assert main(["compare", before, slower, "--threshold", "15%"]) == 0
    assert "1 case compared: 1 same." in capsys.readouterr().out


def test_a_gate_is_not_passed_by_measuring_less(write, make_study, make_measurement, capsys):
    before = write("before.json", make_study(make_measurement(8), make_measurement(16)))
    ended = write("ended.json", make_study(make_measurement(8), complete=False))
    assert main(["compare", before, ended]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "2 cases compared: 1 missing, 1 same." in said
    assert "The study after is incomplete." in said


def test_studies_of_a_database_are_compared_by_name(in_tmp, make_study, make_measurement, capsys):
    older = make_study(make_measurement(8), started_at="2026-01-01T00:00:00+00:00")
    newer = make_study(make_measurement(8, 2e-3), started_at="2026-01-02T00:00:00+00:00")
    with Store.open(in_tmp / "peakward.db") as store:
        store.add_study(older)
        store.add_study(newer)
    assert main(["compare", older.id, "last"]) == 1
    said = capsys.readouterr().out
    assert older.id[:12] in said
    assert newer.id[:12] in said


def test_environments_that_differ_are_refused_naming_each_difference(
    write, make_study, make_measurement, capsys
):
    study = make_study(make_measurement(8))
    other = msgspec.structs.replace(study.environment, torch="2.14.0", n_cores=8)
    before = write("before.json", study)
    after = write("after.json", make_study(make_measurement(8), environment=other))
    assert main(["compare", before, after]) == 2
    line = capsys.readouterr().err
    assert "n_cores: 2, then 8; torch: 2.13.0, then 2.14.0" in line
    assert "--across" in line
    assert main(["compare", before, after, "--across"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "torch: 2.13.0, then 2.14.0" in said


def test_json_is_a_study_that_holds_both_sides(write, make_study, make_measurement, capsysbinary):
    before = write("before.json", make_study(make_measurement(8)))
    after = write("after.json", make_study(make_measurement(8, 2e-3)))
    assert main(["compare", before, after, "--json"]) == 1
    record = json.loads(capsysbinary.readouterr().out)["record"]
    assert record["name"] == "compare"
    assert len(record["measurements"]) == 2
