"""One writer at a time, and no lock that outlives its holder."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from peakward.records.errors import PeakwardError
from peakward.store.connection import take_lock
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
