"""Places that cannot be written and disks that are full."""

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from peakward.records.errors import PeakwardError
from peakward.records.protocol import Protocol
from peakward.store.database import Store
from peakward.store.faults import told_in_one_line

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


def told(path: Path) -> str:
    with without_privilege(), pytest.raises(PeakwardError) as caught:
        Store.open(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    assert "--db" in message
    return message


def test_a_folder_that_does_not_exist_is_named(folder: Path) -> None:
    message = told(folder / "missing" / "peakward.db")
    assert "create the folder" in message
    assert list(folder.iterdir()) == []


def test_a_file_is_no_folder(folder: Path) -> None:
    (folder / "file").touch()
    assert "Not a directory" in told(folder / "file" / "peakward.db")


def test_a_folder_that_cannot_be_written_is_refused(folder: Path) -> None:
    folder.chmod(0o555)
    assert "in a folder that can be written" in told(folder / "peakward.db")
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_entered_is_refused(folder: Path) -> None:
    folder.chmod(0o600)
    assert "ermission" in told(folder / "peakward.db")


def test_a_file_that_cannot_be_written_is_refused_at_once(folder: Path) -> None:
    path = folder / "peakward.db"
    folder.chmod(0o777)
    with without_privilege():
        Store.open(path).close()
    path.chmod(0o444)
    assert "expected a file that may be written" in told(path)


def test_a_file_that_cannot_be_read_is_refused(folder: Path) -> None:
    path = folder / "peakward.db"
    Store.open(path).close()
    path.chmod(0o000)
    assert "Permission denied" in told(path)


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
