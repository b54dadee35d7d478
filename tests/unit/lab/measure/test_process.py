"""A worker process seen from its parent: it answers, or its end is known, and nothing outlives it."""

import os
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest

from peakward.lab.measure.messages import Calibrated, CalibrateRequest, Event, Ready, Released
from peakward.lab.measure.process import WorkerDied, WorkerProcess

SCRIPT = Path(__file__).with_name("scripted_worker.py")
REQUEST = CalibrateRequest(device_type="cpu")


@pytest.fixture
def start():
    """start(plan): a scripted worker, killed at the end of the test."""
    started = []

    def start(plan):
        process = WorkerProcess((sys.executable, str(SCRIPT), plan), os.environ)
        started.append(process)
        return process

    yield start
    for each in started:
        each.kill()


def replies(process):
    """All that comes until the worker dies."""
    while True:
        reply = process.receive(30.0)
        if reply is not None:
            yield reply


def collect(process):
    found = []
    with pytest.raises(WorkerDied):
        for reply in replies(process):
            found.append(reply)
    return found


def is_alive(pid):
    """Whether it runs: a dead process that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_it_answers_in_order_and_keeps_what_was_printed_apart(start):
    process = start("answer")
    process.send(REQUEST)
    stream = replies(process)
    kinds = [type(next(stream)) for _ in range(4)]
    assert kinds == [Ready, Event, Calibrated, Released]
    process.kill()
    assert "some library prints this" in process.tail()


def test_it_has_a_session_of_its_own(start):
    process = start("answer")
    next(replies(process))
    assert os.getsid(process.pid) == process.pid != os.getsid(0)


def test_nothing_within_the_time_is_none(start):
    process = start("hang")
    process.send(REQUEST)
    stream = replies(process)
    assert [type(next(stream)) for _ in range(2)] == [Ready, Event]
    assert process.receive(0.05) is None


@pytest.mark.parametrize(("act", "code"), [("exit", 3), ("SIGSEGV", -11), ("SIGKILL", -9)])
def test_a_death_comes_after_all_that_was_said(start, act, code):
    process = start(act)
    process.send(REQUEST)
    assert [type(each) for each in collect(process)] == [Ready, Event]
    assert process.bury() == code
    assert not is_alive(process.pid)


def test_a_death_is_noticed_though_a_child_holds_the_pipes(start):
    process = start("leave-a-child")
    process.send(REQUEST)
    collect(process)
    assert process.bury() == 4
    child = int(process.tail().split("child ")[1].split()[0])
    deadline_s = monotonic() + 30.0  # it was killed, but need not have got round to dying
    while is_alive(child) and monotonic() < deadline_s:
        sleep(0.01)
    assert not is_alive(child)


def test_a_stopped_process_can_be_killed(start):
    process = start("stop")
    process.send(REQUEST)
    stream = replies(process)
    assert [type(next(stream)) for _ in range(2)] == [Ready, Event]
    process.kill()
    process.kill()
    assert not is_alive(process.pid)


def test_sending_to_the_dead_says_so(start):
    process = start("exit")
    process.send(REQUEST)
    collect(process)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # until then its pipe may be open
    with pytest.raises(WorkerDied):
        process.send(REQUEST)


def test_the_tail_is_bounded():
    talker = "import sys\nfor i in range(30000): print('line', i)\n"
    process = WorkerProcess((sys.executable, "-c", talker), os.environ)
    collect(process)
    assert process.bury() == 0
    assert process.tail().endswith("line 29999\n")
    assert len(process.tail()) <= 1 << 16
