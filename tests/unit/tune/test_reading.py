"""Windows of a watched loop, read in another process."""

import sys
import threading
from pathlib import Path

import pytest

from peakward.records.loop import LoopTimes, Pauses
from peakward.tune.reading import WindowReader

TRACE = Path(__file__).parents[2] / "data" / "traces" / "cpu_decoder.json.gz"
TIMES = LoopTimes(
    n_steps=100, total_s=10.0, median_s=0.1, spread_s=0.0, change=0.0, change_p_value=1.0,
    waited_s=4.0, n_collections=0, collected_s=0.0, longest_collection_s=0.0, pauses=Pauses(),
    n_windows=1, windows_s=0.1,
)  # fmt: skip


@pytest.fixture
def trace(tmp_path):
    copy = tmp_path / TRACE.name
    copy.write_bytes(TRACE.read_bytes())
    return copy


def made(**others):
    """A reader, what it read and what failed."""
    found, failed = [], []
    reader = WindowReader(on_reading=found.append, on_failure=failed.append, **others)
    return reader, found, failed


def saying(code):
    return (sys.executable, "-c", code)


def test_a_window_is_read_beside_the_caller_and_removed(trace):
    reader, found, failed = made()
    assert reader.is_ready()
    reader.read(trace, TIMES)
    assert reader.finish(120.0)
    assert failed == []
    (read,) = found
    assert read.profile.is_of_host
    assert read.device is None
    assert "LOOP001" in [each.code for each in read.diagnosis.findings]
    assert not trace.exists()
    assert reader.is_ready()


def test_it_is_told_in_a_thread_of_its_own(trace):
    names = []
    reader = WindowReader(
        on_reading=lambda _: names.append(threading.current_thread().name), on_failure=names.append
    )
    reader.read(trace, TIMES)
    reader.finish(120.0)
    assert names == ["peakward-watch"]


def test_a_damaged_trace_is_said_and_no_other_is_taken(tmp_path):
    path = tmp_path / "window.json"
    path.write_text("{}")
    reader, found, failed = made()
    reader.read(path, TIMES)
    assert reader.finish(120.0)
    assert found == []
    assert "the reader of a window ended with 1: window.json: expected" in failed[0]
    assert not reader.is_ready()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os; os.abort()", "no reason given"),
        ("print('{}')", "expected a WatchedWindow record"),
    ],
)
def test_a_reader_that_dies_or_babbles_is_a_failure(trace, code, said):
    reader, found, failed = made(command=saying(code))
    reader.read(trace, TIMES)
    assert reader.finish(60.0)
    assert found == [] and said in failed[0]


def test_one_that_ctrl_c_met_is_no_failure_and_the_next_is_read(trace):
    code = "import os, signal; signal.signal(2, signal.SIG_DFL); os.kill(os.getpid(), 2)"
    reader, found, failed = made(command=saying(code))
    reader.read(trace, TIMES)
    assert reader.finish(60.0)
    assert found == failed == []
    assert reader.is_ready()


def test_one_that_cannot_start_is_a_failure(trace):
    reader, _, failed = made(command=("/no/such/program",))
    reader.read(trace, TIMES)
    reader.finish(60.0)
    assert "No such file" in failed[0]


def test_one_that_is_dropped_says_nothing(trace):
    reader, found, failed = made(command=saying("import time; time.sleep(600)"))
    reader.read(trace, TIMES)
    assert not reader.is_ready()
    while reader._process is None:
        pass
    assert not reader.finish(0.0)
    assert found == failed == []
    assert not reader._thread.is_alive()
    assert not trace.exists()


def test_without_a_window_there_is_nothing_to_wait_for():
    reader, _, _ = made()
    assert reader.finish(0.0)
