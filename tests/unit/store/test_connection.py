"""One writer at a time, and no lock that outlives its holder."""

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from peakward.records.errors import PeakwardError
from peakward.records.measurement import Protocol
from peakward.store.connection import SCHEMA_VERSION, take_lock, told_in_one_line
from peakward.store.database import Store

HOLD = """
import sys, time
from pathlib import Path
from peakward.store.database import Store
store = Store.open(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(path: Path) -> "subprocess.Popen[str]":
    """Another process that has the database open to write."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
        process.kill()


def test_a_second_writer_is_told_who_writes_and_what_to_do(
    holder: "subprocess.Popen[str]", path: Path
) -> None:
    with pytest.raises(PeakwardError) as caught:
        Store.open(path)
    told = str(caught.value)
    assert f"expected {path} to be free, got one that process {holder.pid} on " in told
    assert told.endswith("wait for it to end, or give this run a file of its own with --db")
    assert "\n" not in told
    assert caught.value.exit_code == 2
    Store.open_read_only(path).close()


TRY = HOLD.replace("store = ", "print('ready', flush=True); sys.stdin.readline(); store = ")


def test_of_writers_that_start_together_one_gets_in(path: Path) -> None:
    """Though none of them finds a database there yet."""
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", TRY, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    # The losers end; the winner waits for its input to close, which is left to last.
    while sum(writer.poll() is None for writer in writers) > 1:
        time.sleep(0.01)
    ended = [writer.communicate() for writer in writers if writer.poll() is not None]
    assert len(ended) == 3
    assert all("PeakwardError: expected" in errors for _, errors in ended)
    assert all("to be free, got one that" in errors for _, errors in ended)
    (winner,) = [writer for writer in writers if writer.poll() is None]
    assert winner.communicate() == ("open\n", "")


def test_a_killed_writer_holds_nothing(holder: "subprocess.Popen[str]", path: Path) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    Store.open(path).close()


def test_a_writer_that_ends_lets_the_next_in(holder: "subprocess.Popen[str]", path: Path) -> None:
    holder.communicate()
    Store.open(path).close()


def test_a_second_store_of_the_same_process_is_a_second_writer(path: Path) -> None:
    with Store.open(path):
        with pytest.raises(PeakwardError, match=f"process {os.getpid()} on "):
            Store.open(path)
        with pytest.raises(PeakwardError, match="to be free"):
            Store.open(path)
    Store.open(path).close()


def test_a_forked_child_does_not_inherit_the_lock(tmp_path: Path) -> None:
    """As a data loader's worker would, when the run that started it is killed."""
    held = take_lock(tmp_path / "db")
    assert held is not None
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write_end)
        os.read(read_end, 1)
        os._exit(0)
    try:
        held.close()
        again = take_lock(tmp_path / "db")
        assert again is not None
        again.close()
    finally:
        os.close(write_end)
        os.close(read_end)
        os.waitpid(child, 0)


def test_an_opening_that_fails_lets_the_lock_go(path: Path) -> None:
    with Store.open(path) as store:
        store._connection.execute("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
    for _ in range(2):
        with pytest.raises(PeakwardError, match="newer Peakward"):
            Store.open(path)


def test_another_database_in_the_same_folder_is_free(tmp_path: Path) -> None:
    with Store.open(tmp_path / "a.db"), Store.open(tmp_path / "b.db"):
        pass


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


NOBODY = 65534


@contextmanager
def without_privilege() -> Iterator[None]:
    """Root may write everywhere, so step down from it where the tests run as root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that others can reach; pytest's own are closed to all but their owner."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def told_line(path: Path) -> str:
    with without_privilege(), pytest.raises(PeakwardError) as caught:
        Store.open(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    assert "--db" in message
    return message


def test_a_folder_that_does_not_exist_is_named(folder: Path) -> None:
    message = told_line(folder / "missing" / "peakward.db")
    assert "create the folder" in message
    assert list(folder.iterdir()) == []


def test_a_file_is_no_folder(folder: Path) -> None:
    (folder / "file").touch()
    assert "Not a directory" in told_line(folder / "file" / "peakward.db")


def test_a_folder_that_cannot_be_written_is_refused(folder: Path) -> None:
    folder.chmod(0o555)
    assert "in a folder that can be written" in told_line(folder / "peakward.db")
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_entered_is_refused(folder: Path) -> None:
    folder.chmod(0o600)
    assert "ermission" in told_line(folder / "peakward.db")


def test_a_file_that_cannot_be_written_is_refused_at_once(folder: Path) -> None:
    path = folder / "peakward.db"
    folder.chmod(0o777)
    with without_privilege():
        Store.open(path).close()
    path.chmod(0o444)
    assert "expected a file that may be written" in told_line(path)


def test_a_file_that_cannot_be_read_is_refused(folder: Path) -> None:
    path = folder / "peakward.db"
    Store.open(path).close()
    path.chmod(0o000)
    assert "Permission denied" in told_line(path)


def test_a_database_in_a_folder_that_cannot_be_written_is_read(
    make: SimpleNamespace, folder: Path
) -> None:
    path = folder / "peakward.db"
    with Store.open(path) as store:
        store.add_study(make.study())
    folder.chmod(0o555)
    path.chmod(0o444)
    with without_privilege(), Store.open_read_only(path) as store:
        assert store.study("last") == make.study()


def test_a_full_disk_loses_only_what_did_not_fit(make: SimpleNamespace, path: Path) -> None:
    big = make.measurement("big", case=make.case("big"), reason="x" * 200_000)
    key = make.environment().key
    with Store.open(path) as store:
        store.add_measurement(make.measurement("before"))
        (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
        store._connection.execute(f"PRAGMA max_page_count = {pages + 10}")
        with pytest.raises(PeakwardError) as caught:
            store.add_measurement(big)
        assert 'got "database or disk is full": free space and run' in str(caught.value)
        assert store.measurement(make.case("big"), Protocol(), key) is None
        store.add_measurement(make.measurement("small", case=make.case("small")))
        store._connection.execute(f"PRAGMA max_page_count = {pages + 1000}")
        store.add_measurement(big)
    with Store.open_read_only(path) as store:
        assert store._connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        for name in ("step", "small", "big"):
            assert store.measurement(make.case(name), Protocol(), key) is not None


def test_a_disk_too_full_to_create_the_database_leaves_none(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def tiny(*arguments: object, **options: object) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.execute("PRAGMA max_page_count = 3")
        return connection

    monkeypatch.setattr(sqlite3, "connect", tiny)
    with pytest.raises(PeakwardError, match="database or disk is full"):
        Store.open(path)
    monkeypatch.undo()
    assert path.stat().st_size == 0
    Store.open(path).close()


def test_a_fault_of_ours_is_not_blamed_on_the_file(path: Path) -> None:
    with (
        pytest.raises(sqlite3.OperationalError, match="no such table"),
        told_in_one_line(path),
    ):
        sqlite3.connect(":memory:").execute("SELECT * FROM absent")
    with pytest.raises(sqlite3.ProgrammingError), told_in_one_line(path):
        sqlite3.connect(":memory:").execute("SELECT ?", ())
