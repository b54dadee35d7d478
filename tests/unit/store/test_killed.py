"""A process that is killed while it creates a database leaves what a reader names and a writer resumes."""

import os
import resource
import shutil
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from peakward.records.errors import PeakwardError
from peakward.store.connection import connect_writer
from peakward.store.database import Store

CUT_OFF = "got one whose creation was cut off: run the command again that made it, it resumes"
EMPTY = "got an empty file: `peakward run` fills one"


def killed_beyond(n_bytes: int, act: Callable[[], object]) -> None:
    """Carry it out in a process that the system kills at its first write beyond so many bytes of a file."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, n_bytes))
        act()
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXFSZ


def said_by_a_reader(path: Path) -> str:
    """Nothing where it is read."""
    try:
        Store.open_read_only(path).close()
    except PeakwardError as error:
        return str(error)
    return ""


def resumes(path: Path, make: SimpleNamespace) -> None:
    with Store.open(path) as store:
        store.add_study(make.study())
    with Store.open_read_only(path) as store:
        assert store.study("last") == make.study()


def whole_size(path: Path) -> int:
    Store.open(path).close()
    size = path.stat().st_size
    path.unlink()
    return size


@pytest.mark.parametrize("sixteenths", range(16))
def test_a_creation_that_is_killed_while_it_writes(
    sixteenths: int, make: SimpleNamespace, path: Path
) -> None:
    at = whole_size(path) * sixteenths // 16
    killed_beyond(at, lambda: Store.open(path))
    said = said_by_a_reader(path)
    assert (EMPTY if at == 0 else CUT_OFF) in said
    assert str(path) in said and "\n" not in said and "malformed" not in said
    resumes(path, make)


@pytest.mark.parametrize("lost", ["the last page", "the first page's second half"])
def test_a_creation_whose_pages_were_written_in_part(
    lost: str, make: SimpleNamespace, path: Path
) -> None:
    killed_beyond(whole_size(path) // 2, lambda: Store.open(path))
    content = bytearray(path.read_bytes())
    if lost == "the last page":
        content = content[:-100]
    else:
        content[512:4096] = bytes(4096 - 512)
    path.write_bytes(content)
    assert CUT_OFF in said_by_a_reader(path)
    resumes(path, make)


def states_while(act: Callable[[], object], folder: Path, into: Path) -> list[Path]:
    """Copies of the folder at every twentieth instruction of SQLite, each what a kill there would leave."""
    copies: list[Path] = []

    def copy() -> int:
        copies.append(Path(shutil.copytree(folder, into / str(len(copies)))))
        return 0

    connect = sqlite3.connect

    def watched(place: object, **options: object) -> sqlite3.Connection:
        connection = connect(place, **options)
        if not str(place).endswith(("-lock", ":memory:")):
            connection.set_progress_handler(copy, 20)
        return connection

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", watched)
        act()
    return copies


@pytest.mark.parametrize("version", [None, 1, 2])
def test_a_kill_between_any_two_steps_of_a_creation_or_a_migration(
    version: int | None, make: SimpleNamespace, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "peakward.db"
    if version is not None:
        of_version(path, version)
    copies = states_while(lambda: connect_writer(path).close(), folder, tmp_path)
    assert len(copies) > 8
    for copy in copies:
        if (copy / path.name).exists():
            said = said_by_a_reader(copy / path.name)
            assert not said or EMPTY in said or CUT_OFF in said
        resumes(copy / path.name, make)


def of_version(path: Path, version: int) -> None:
    Store.open(path).close()
    with sqlite3.connect(path) as connection:
        for since, table in ((2, "profile"), (3, "case_memory")):
            if since > version:
                connection.execute(f"DROP TABLE {table}")
        connection.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (version,))
    connection.close()
