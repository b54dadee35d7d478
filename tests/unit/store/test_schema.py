"""Files that are not ours, not sound, or not for this version: one line, and nothing touched."""

import sqlite3
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from peakward.records.errors import PeakwardError
from peakward.store.database import Store
from peakward.store.schema import SCHEMA_VERSION

OPENINGS = [Store.open, Store.open_read_only]


def told(opening: object, path: Path) -> str:
    with pytest.raises(PeakwardError) as caught:
        opening(path)  # type: ignore[operator]
    assert caught.value.exit_code == 2
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize("content", [b"not a database at all", b"SQLite form", b"\x00" * 4096])
def test_a_file_that_is_no_database_is_refused_and_left_alone(
    opening: object, content: bytes, path: Path
) -> None:
    path.write_bytes(content)
    assert "no SQLite database: name another file with --db" in told(opening, path)
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize("application_id", [0, 0x42])
def test_another_programs_database_is_refused_and_left_alone(
    opening: object, application_id: int, path: Path
) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA application_id = {application_id}")
        connection.execute("CREATE TABLE meta (key, value)")
    connection.close()
    before = path.read_bytes()
    assert "another program's SQLite file: name another file with --db" in told(opening, path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("opening", OPENINGS)
def test_a_newer_schema_is_refused(opening: object, path: Path) -> None:
    with Store.open(path) as store:
        store._connection.execute(
            "UPDATE meta SET value = ? WHERE key = 'schema_version'", (str(SCHEMA_VERSION + 1),)
        )
    message = told(opening, path)
    assert f"expected a database of schema {SCHEMA_VERSION} or older" in message
    assert f"got {SCHEMA_VERSION + 1}: it was written by a newer Peakward; upgrade" in message


CHANGES = {
    "UPDATE meta SET value = 'abc'": "got 'abc'",
    "UPDATE meta SET value = ''": "got ''",
    "UPDATE meta SET value = '-1'": "got '-1'",
    "UPDATE meta SET value = '1e3'": "got '1e3'",
    "UPDATE meta SET value = x'1b5b32'": "the version of its schema in the table meta",
    "UPDATE meta SET value = 'a' || char(10) || char(27) || '[2J'": r"got 'a\\n\\x1b[2J'",
    "DELETE FROM meta": "the version of its schema in the table meta",
    "DROP TABLE meta": "expected a results database with the table or index meta",
    "DROP TABLE meta; CREATE TABLE meta (key)": "Peakward's own meta",
    "DROP TABLE measurement": "the table or index measurement",
    "DROP TABLE case_memory": "the table or index case_memory",
    "DROP INDEX trial_by_key": "the table or index trial_by_key",
    "ALTER TABLE study RENAME COLUMN record TO other": "Peakward's own study",
    "ALTER TABLE study ADD COLUMN other": "Peakward's own study",
    "DROP TABLE study; CREATE VIEW study AS SELECT * FROM trial": "Peakward's own study",
    "UPDATE meta SET value = '1'; DROP TABLE profile; CREATE TABLE profile (id)": "own profile",
    "CREATE TRIGGER t AFTER INSERT ON meta BEGIN SELECT RAISE(ABORT, 'no'); END": "the trigger 't'",
}


@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_database_that_something_else_changed_is_refused(
    opening: object, change: str, path: Path
) -> None:
    Store.open(path).close()
    with sqlite3.connect(path) as connection:
        connection.executescript(f"DELETE FROM meta WHERE key = 'writer'; {change};")
    connection.close()
    message = told(opening, path)
    assert CHANGES[change] in message
    assert message.isprintable()
    assert "something else than Peakward changed it; move the file away" in message


@pytest.mark.parametrize("opening", OPENINGS)
def test_tables_of_the_user_s_own_are_left_alone(
    opening: object, make: SimpleNamespace, path: Path
) -> None:
    with Store.open(path) as store:
        store.add_study(make.study())
    with sqlite3.connect(path) as connection:
        connection.executescript("CREATE TABLE mine (a); CREATE INDEX by_a ON mine (a); ANALYZE;")
    connection.close()
    with opening(path) as store:  # type: ignore[operator]
        assert store.study("last") == make.study()


def test_tables_that_a_version_is_not_said_to_have_are_not_laid_twice(path: Path) -> None:
    Store.open(path).close()
    with sqlite3.connect(path) as connection:
        connection.executescript(
            "UPDATE meta SET value = '1' WHERE key = 'schema_version'; DROP TABLE case_memory"
        )
    connection.close()
    Store.open(path).close()
    with Store.open_read_only(path) as store:
        assert store._connection.execute(
            "SELECT value FROM meta WHERE key = 'schema_version'"
        ).fetchone() == (str(SCHEMA_VERSION),)


@pytest.mark.parametrize(
    "value", ["x'00ff'", "7", "'a' || char(27) || '[2J'", "CAST(x'ff' AS TEXT)"]
)
@pytest.mark.parametrize("column", ["id", "name", "title", "created", "record", "complete"])
def test_a_column_that_was_edited_is_read_or_refused_in_one_line(
    column: str, value: str, make: SimpleNamespace, path: Path
) -> None:
    with Store.open(path) as store:
        store.add_study(make.study())
        store._connection.execute(f"UPDATE study SET {column} = {value}")
        for entry in store.studies():
            assert all(str(each).isprintable() for each in msgspec.structs.astuple(entry))
        try:
            assert store.study("last") == make.study()
        except PeakwardError as error:
            assert str(error).isprintable()
            assert column in ("id", "record")


@pytest.fixture
def filled(make: SimpleNamespace, path: Path) -> Path:
    """A database of some twenty pages."""
    with Store.open(path) as store:
        for i in range(4):
            store.add_measurement(make.measurement(f"m{i}", reason="x" * 20_000))
    return path


@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize("kept", [200, 4096, 10_000])
def test_a_truncated_database_is_refused(opening: object, kept: int, filled: Path) -> None:
    filled.write_bytes(filled.read_bytes()[:kept])
    message = told(opening, filled)
    assert "expected a sound database" in message or "expected a results database" in message
    assert "--db" in message


@pytest.mark.parametrize("page", [2, 4, 5])
def test_an_overwritten_page_is_noticed_before_a_run_starts(page: int, filled: Path) -> None:
    content = bytearray(filled.read_bytes())
    content[(page - 1) * 4096 : page * 4096] = b"\xa5" * 4096
    filled.write_bytes(content)
    message = told(Store.open, filled)
    assert "expected a sound database" in message
    assert "move the file away, or name another with --db" in message


def test_an_overwritten_record_is_noticed_when_it_is_read(
    make: SimpleNamespace, path: Path
) -> None:
    with Store.open(path) as store:
        store.add_study(make.study())
        store._connection.execute("UPDATE study SET record = '{\"schema_version\": 1}'")
        with pytest.raises(PeakwardError, match="expected a Study record"):
            store.study("last")


def test_an_empty_file_becomes_a_database(make: SimpleNamespace, path: Path) -> None:
    path.touch()
    assert "got an empty file: `peakward run` fills one" in told(Store.open_read_only, path)
    with Store.open(path) as store:
        store.add_study(make.study())
    with Store.open_read_only(path) as store:
        assert store.study("last") == make.study()


def test_reading_what_does_not_exist_creates_nothing(path: Path) -> None:
    assert "got no such file: `peakward run` makes one" in told(Store.open_read_only, path)
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("opening", OPENINGS)
def test_a_folder_is_no_database(opening: object, path: Path) -> None:
    path.mkdir()
    assert "Is a directory" in told(opening, path)


def test_a_database_of_the_first_schema_gains_the_later_tables(
    make: SimpleNamespace, path: Path
) -> None:
    with Store.open(path) as store:
        store.add_study(make.study())
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE profile")
        connection.execute("DROP TABLE case_memory")
        connection.execute("UPDATE meta SET value = '1' WHERE key = 'schema_version'")
    connection.close()
    with Store.open_read_only(path) as store:
        assert store.profile(make.model_case(), 3, "here") is None
        assert store.memory(make.model_case(), "here") is None
    for _ in range(2):
        with Store.open(path) as store:
            store.add_profile(make.profile())
            assert store.profile(make.model_case(), 3, "here") == make.profile()
            store.add_memory(make.case_memory())
            assert store.memory(make.model_case(), "here") == make.case_memory()
            assert store.study("last") == make.study()
            (version,) = store._connection.execute(
                "SELECT value FROM meta WHERE key = 'schema_version'"
            ).fetchone()
            assert version == str(SCHEMA_VERSION)
