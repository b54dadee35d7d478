"""Taking in what another run left: all of it, once, or nothing."""

import sqlite3
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from peakward.records.codec import SCHEMA_VERSION, to_json
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Protocol
from peakward.store.database import Store


def counts(store: Store) -> dict[str, int]:
    return {
        table: store._connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        for table in ("measurement", "trial", "calibration", "profile", "case_memory", "study")
    }


NONE = {"measurement": 0, "trial": 0, "calibration": 0, "profile": 0, "case_memory": 0, "study": 0}


@pytest.fixture
def other(make: SimpleNamespace, tmp_path: Path) -> Path:
    """A database with one record of each kind, and a second measurement."""
    path = tmp_path / "other.db"
    with Store.open(path) as store:
        store.add_measurement(make.measurement("m1"))
        store.add_measurement(make.measurement("m2", case=make.case("second")))
        store.add_trial(make.trial())
        store.add_calibration(make.calibration())
        store.add_profile(make.profile())
        store.add_memory(make.case_memory())
        store.add_study(make.study())
    return path


def test_a_database_is_taken_in_once(make: SimpleNamespace, path: Path, other: Path) -> None:
    with Store.open(path) as store:
        store.add_measurement(make.measurement("m1"))
        assert store.take_in(other) == 6
        assert store.take_in(other) == 0
        assert counts(store) == dict.fromkeys(NONE, 1) | {"measurement": 2}
        assert store.profile(make.model_case(), 3, "here") == make.profile()
        assert store.memory(make.model_case(), "here") == make.case_memory()
        key = make.environment().key
        assert store.measurement(make.case("second"), Protocol(), key) is not None
        assert store.trial("bf16", make.model_case(4), make.model_case(8), "here") == make.trial()
        assert store.calibration(key) == make.calibration()
        assert store.study("last") == make.study()


def test_a_database_is_taken_in_while_it_is_written(
    make: SimpleNamespace, path: Path, other: Path
) -> None:
    with Store.open(path) as store, Store.open(other) as writer:
        writer.add_measurement(make.measurement("m3"))
        assert store.take_in(other) == 8


def test_a_trial_keeps_the_time_it_was_stored_at(
    make: SimpleNamespace, path: Path, tmp_path: Path
) -> None:
    with Store.open(tmp_path / "older.db") as older:
        older.add_trial(make.trial("old"))
    with Store.open(path) as store:
        store.add_trial(make.trial("new"))
        store.take_in(tmp_path / "older.db")
        found = store.trial("bf16", make.model_case(4), make.model_case(8), "here")
    assert found is not None
    assert found.id == "new"


@pytest.mark.parametrize(
    "kind", ["measurement", "trial", "calibration", "profile", "case_memory", "study"]
)
def test_a_file_of_one_record_is_taken_in_once(
    make: SimpleNamespace, path: Path, tmp_path: Path, kind: str
) -> None:
    file = tmp_path / "record.json"
    file.write_bytes(to_json(getattr(make, kind)()))
    with Store.open(path) as store:
        assert store.take_in(file) == 1
        assert store.take_in(file) == 0
        assert counts(store) == NONE | {kind: 1}


def test_a_study_brings_what_it_holds(make: SimpleNamespace, path: Path, tmp_path: Path) -> None:
    study = make.study(
        measurements=(make.measurement("m1"), make.measurement("m2")),
        trials=(make.trial(),),
        profiles=(make.profile(),),
        memory=(make.case_memory(),),
        calibration=make.calibration(),
    )
    file = tmp_path / "study.json"
    file.write_bytes(to_json(study))
    with Store.open(path) as store:
        assert store.take_in(file) == 7
        assert counts(store) == dict.fromkeys(NONE, 1) | {"measurement": 2}
        assert store.study("s1") == study


def broken_record(make: SimpleNamespace) -> bytes:
    return to_json(make.measurement()).replace(b'"wall_s":1.5', b'"wall_s":"long"')


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (lambda make: b"", "expected a Study record, got Input data was truncated"),
        (lambda make: b"\xff\xfe", "expected a Study record, got "),
        (lambda make: b"[1, 2]", "expected a Study record, got Expected `object`"),
        (lambda make: b'{"hello": 1}', "expected a Study record, got Object missing"),
        (broken_record, "expected a Measurement record, got Expected `float`, got `str`"),
        (
            lambda make: msgspec.json.encode(
                {"schema_version": SCHEMA_VERSION + 1, "record": {"lever": 1, "new": 2}}
            ),
            "written by a newer Peakward",
        ),
    ],
    ids=["empty", "bytes", "list", "object", "broken", "newer"],
)
def test_what_is_no_record_changes_nothing(
    make: SimpleNamespace, path: Path, tmp_path: Path, content: object, told: str
) -> None:
    file = tmp_path / "record.json"
    file.write_bytes(content(make))  # type: ignore[operator]
    with Store.open(path) as store:
        with pytest.raises(PeakwardError) as caught:
            store.take_in(file)
        assert counts(store) == NONE
    assert told in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_bad_record_keeps_all_of_its_database_out(
    make: SimpleNamespace, path: Path, other: Path
) -> None:
    with Store.open(other) as store:
        store._connection.execute("UPDATE study SET record = '{}'")
    with Store.open(path) as store:
        with pytest.raises(PeakwardError, match="expected a Study record"):
            store.take_in(other)
        assert counts(store) == NONE


def test_a_contradiction_keeps_all_of_its_database_out(
    make: SimpleNamespace, path: Path, other: Path
) -> None:
    with Store.open(path) as store:
        store.add_trial(make.trial(reason="another story"))
        with pytest.raises(PeakwardError, match=r"expected one trial of each id, got a second t1"):
            store.take_in(other)
        assert counts(store) == NONE | {"trial": 1}


@pytest.mark.parametrize("name", ["missing.json", "."])
def test_a_path_that_is_no_file_is_named(path: Path, tmp_path: Path, name: str) -> None:
    with (
        Store.open(path) as store,
        pytest.raises(PeakwardError, match=r"expected a file of records at .*: check the path"),
    ):
        store.take_in(tmp_path / name)


def test_another_programs_database_is_not_taken_in(
    make: SimpleNamespace, path: Path, other: Path
) -> None:
    with Store.open(other) as store:
        store._connection.execute("PRAGMA application_id = 7")
    with (
        Store.open(path) as store,
        pytest.raises(PeakwardError, match="another program's SQLite file"),
    ):
        store.take_in(other)


def test_a_database_without_profiles_is_taken_in(
    make: SimpleNamespace, path: Path, other: Path
) -> None:
    with sqlite3.connect(other) as connection:
        connection.execute("DROP TABLE profile")
        connection.execute("DROP TABLE case_memory")
        connection.execute("UPDATE meta SET value = '1' WHERE key = 'schema_version'")
    connection.close()
    with Store.open(path) as store:
        assert store.take_in(other) == 5
        assert counts(store)["profile"] == counts(store)["case_memory"] == 0
