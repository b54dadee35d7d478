"""A worker process seen from its parent: it answers, or its end is known, and nothing outlives it."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from peakward.lab.measure import process as process_module
from peakward.lab.measure.messages import Calibrated, CalibrateRequest, Event, Ready, Released
from peakward.lab.measure.process import Garbled, WorkerDied, WorkerProcess

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
    sessions = [os.getsid(each) for each in (0, process.pid, process.worker_pid)]
    assert sessions[1:] == [process.pid, process.worker_pid]
    assert len(set(sessions)) == 3


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


def test_a_death_is_noticed_though_a_child_holds_the_pipes(start, wait_until_dead):
    process = start("leave-a-child")
    process.send(REQUEST)
    collect(process)
    assert process.bury() == 4
    child = int(process.tail().split("child ")[1].split()[0])
    wait_until_dead(child)  # it was killed, but need not have got round to dying


def test_a_stopped_process_can_be_killed(start):
    process = start("stop")
    process.send(REQUEST)
    stream = replies(process)
    assert [type(next(stream)) for _ in range(2)] == [Ready, Event]
    process.kill()
    process.kill()
    assert not is_alive(process.pid)


def daemon_of(process):
    """The one that the worker's last words name."""
    return int(process.tail().split("daemon ")[1].split()[0])


def begin(process, n_replies):
    process.send(REQUEST)
    stream = replies(process)
    return [next(stream) for _ in range(n_replies)]


def test_a_daemon_in_a_session_of_its_own_ends_with_the_worker(start, wait_until_dead):
    process = start("leave-a-daemon")
    process.send(REQUEST)
    collect(process)
    assert process.bury() == 5
    wait_until_dead(daemon_of(process))


def test_killing_ends_what_holds_the_interpreter_and_its_daemon(start, wait_until_dead):
    process = start("wedge")
    begin(process, 3)
    process.kill()
    wait_until_dead(process.worker_pid)
    wait_until_dead(daemon_of(process))


PARENT = """
import os, sys
from peakward.lab.measure import process as process_module
from peakward.lab.measure.messages import CalibrateRequest
from peakward.lab.measure.process import WorkerProcess

process = WorkerProcess((sys.executable, *sys.argv[1:]), os.environ)
process.send(CalibrateRequest(device_type="cpu"))
n_replies = 0
while n_replies < 3:
    n_replies += process.receive(30.0) is not None
while "daemon " not in process.tail():
    pass
if os.fork() == 0:  # as a loader of the user's would, holding a copy of every pipe
    os.read(0, 1)
    os._exit(0)
print(process.pid, process.worker_pid, process.tail().split("daemon ")[1].split()[0], flush=True)
os.read(0, 1)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_killed_parent_though_user_code_holds_the_interpreter(
    how, wait_until_dead
):
    command = [sys.executable, "-c", PARENT, str(SCRIPT), "wedge"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        pids = list(map(int, parent.stdout.readline().split()))
        assert all(map(is_alive, pids))
        parent.send_signal(how)
    for each in pids:
        wait_until_dead(each)


def test_a_worker_outlives_the_thread_that_started_it(start):
    """PR_SET_PDEATHSIG would fire at its end."""
    made = []
    thread = threading.Thread(target=lambda: made.append(start("answer")))
    thread.start()
    thread.join()
    (process,) = made
    kinds = [type(each) for each in (*begin(process, 4), *begin(process, 3))]
    assert kinds == [Ready, *(Event, Calibrated, Released) * 2]


def test_its_worker_dies_with_a_keeper_that_is_killed(start, wait_until_dead):
    process = start("wedge")
    begin(process, 3)
    os.kill(process.pid, signal.SIGKILL)
    wait_until_dead(process.worker_pid)
    assert process.bury() == -9
    os.kill(daemon_of(process), signal.SIGKILL)  # nobody is left who would


@pytest.mark.parametrize("act", ["junk", "endless"])
def test_what_is_no_reply_is_garbled(start, act, monkeypatch):
    monkeypatch.setattr(process_module, "MAX_REPLY_BYTES", 1 << 21)
    process = start(act)
    with pytest.raises(Garbled):
        begin(process, 3)


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
