"""Real workers and real faults: each ends as a status, the next case runs, nothing is left over."""

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import msgspec
import pytest

from peakward.lab.measure import process
from peakward.lab.measure.isolated import Workers
from peakward.records.case import ModelCase, Workload
from peakward.records.measurement import Protocol
from peakward.records.model_shape import ModelShape

SCRIPT = Path(__file__).with_name("faulty_worker.py")
FAULTS = (
    "none", "raise", "segfault", "kill", "hang", "hang-in-c", "exit", "nan", "devour", "leak", "babble",
)  # fmt: skip
GIB = 2**30
PROTOCOL = Protocol(warmup_steps=4, min_steps=4, max_steps=4, phases=False, timeout_s=600.0)
SHAPE = ModelShape(
    name="tiny",
    vocab_size=61,
    n_layers=1,
    d_model=32,
    d_ff=48,
    n_heads=4,
    n_kv_heads=4,
    head_dim=8,
    max_seq_len=32,
)


def case(fault, **changes):
    workload = Workload(batch_size=1, seq_len=8, seed=FAULTS.index(fault))
    return msgspec.structs.replace(
        ModelCase(model=SHAPE, workload=workload, device="cpu"), **changes
    )


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition, timeout_s=600.0):
    deadline_s = monotonic() + timeout_s
    while not condition() and monotonic() < deadline_s:
        sleep(0.05)
    return condition()


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """More of them wait for one another on a shared machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def workers():
    with Workers(argv=(sys.executable, str(SCRIPT))) as workers:
        yield workers


@pytest.fixture
def runs_out(monkeypatch):
    """runs_out(event): a listener for whom all time has passed once the steps begin, and none before: how
    long it takes to come so far is the machine's affair."""
    now_s = 0.0

    def heard(event):
        nonlocal now_s
        now_s += 1e9 * (event.stage == "warming up")

    monkeypatch.setattr(process, "monotonic", lambda: now_s)
    return heard


@pytest.fixture
def running(workers):
    """A worker that has started."""
    assert workers.measure(case("none"), PROTOCOL).status == "ok"
    return workers


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        ("segfault", "crashed", "killed by SIGSEGV while warming up"),
        pytest.param("raise", "crashed", "ValueError: planted", marks=pytest.mark.full),
        pytest.param(
            "kill", "crashed", "killed by SIGKILL while warming up", marks=pytest.mark.full
        ),
        pytest.param(
            "exit", "crashed", "exited with code 7 while warming up", marks=pytest.mark.full
        ),
        pytest.param("nan", "invalid", "expected a finite loss, got nan", marks=pytest.mark.full),
    ],
)
def test_a_fault_is_a_status_and_the_next_case_runs(workers, fault, status, reason):
    ended = workers.measure(case(fault), PROTOCOL)
    assert ended.status == status
    assert ended.reason.startswith(reason)
    assert fault != "segfault" or "in string_at" in ended.reason  # the line at fault
    assert workers.measure(case("none"), PROTOCOL).status == "ok"


def test_a_profile_is_written_without_a_word(workers, tmp_path, capfd):
    path = tmp_path / "trace.json.gz"
    found = workers.profile(case("none"), path, n_steps=2)
    assert found.profiled_step_s > 0
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    names = [each["name"] for each in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]]
    assert names.count("peakward::step") == 2
    assert names.count("peakward::attention.softmax") == 2 * SHAPE.n_layers
    assert capfd.readouterr() == ("", "")


def test_an_allocation_beyond_the_limit_is_an_oom(running):
    limited = case("devour", memory_limit_bytes=2 * GIB)
    ended = running.measure(limited, PROTOCOL)
    assert ended.status == "oom"
    assert "can't allocate memory" in ended.reason


@pytest.mark.full  # In the fast tier workers without torch hang, in test_isolated.
@pytest.mark.parametrize("fault", ["hang", "hang-in-c"])
def test_a_hang_ends_at_the_time_limit(running, fault, runs_out):
    pid = running._process.pid
    brief = msgspec.structs.replace(PROTOCOL, timeout_s=5.0)
    ended = running.measure(case(fault), brief, on_event=runs_out)
    assert ended.status == "timeout"
    assert ended.reason.startswith("not done after 5 s, while warming up")
    assert not is_running(pid)


def test_what_is_printed_cannot_be_taken_for_an_answer_and_a_leak_retires_the_worker(running):
    before = running._process.pid
    assert running.measure(case("babble"), PROTOCOL).status == "ok"
    assert running._process.pid == before
    assert running.measure(case("leak"), PROTOCOL).status == "ok"
    assert running._process is None


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        pytest.param(
            "hang", "timeout", "not done after 5 s, while warming up", marks=pytest.mark.full
        ),
        pytest.param("devour", "oom", "", marks=pytest.mark.full),
        pytest.param("segfault", "crashed", "killed by SIGSEGV", marks=pytest.mark.full),
    ],
)
def test_a_profile_that_fails_is_a_status_and_leaves_nothing(
    running, fault, status, reason, tmp_path, capfd, runs_out
):
    case_ = case(fault, memory_limit_bytes=2 * GIB if fault == "devour" else None)
    timeout_s, heard = (5.0, runs_out) if fault == "hang" else (600.0, None)
    path = tmp_path / "trace.json.gz"
    found = running.profile(case_, path, timeout_s=timeout_s, on_event=heard)
    assert (found.status, found.reason.startswith(reason)) == (status, True)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


PARENT = """
import sys
from pathlib import Path
import msgspec
from peakward.lab.measure.isolated import Workers
from peakward.records.case import ModelCase
from peakward.records.measurement import Protocol

case = msgspec.json.decode(sys.argv[2], type=ModelCase)
with Workers(argv=(sys.executable, sys.argv[1])) as workers:
    def tell(event):
        if event.stage == "warming up":
            print(workers._process.worker_pid, flush=True)
    workers.measure(case, Protocol(warmup_steps=4), on_event=tell)
"""


@pytest.mark.parametrize(
    ("how", "fault"),
    [
        (signal.SIGKILL, "hang-in-c"),
        pytest.param(signal.SIGKILL, "hang", marks=pytest.mark.full),
        pytest.param(signal.SIGTERM, "hang-in-c", marks=pytest.mark.full),
    ],
)
def test_no_worker_outlives_its_parent(how, fault):
    encoded = msgspec.json.encode(case(fault)).decode()
    command = [sys.executable, "-c", PARENT, str(SCRIPT), encoded]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        worker = int(parent.stdout.readline())
        assert is_running(worker)
        parent.send_signal(how)
        parent.wait(600)
    assert wait_until(lambda: not is_running(worker))


@pytest.fixture
def memory_group():
    """A control group of 600 MiB, where this user may make one."""
    mounted = Path("/sys/fs/cgroup/memory")
    root, limit = (
        (mounted, "memory.limit_in_bytes")
        if mounted.is_dir()
        else (
            Path("/sys/fs/cgroup"),
            "memory.max",
        )
    )
    group = root / f"peakward-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit).write_text(str(600 * 2**20))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    yield group
    group.rmdir()


@pytest.mark.full
def test_the_kernel_s_kill_for_memory_is_an_oom(memory_group):
    enter = f'echo $$ > {memory_group}/cgroup.procs && exec "$@"'
    argv = ("sh", "-c", enter, "sh", sys.executable, str(SCRIPT))
    with Workers(argv=argv) as workers:
        ended = workers.measure(case("devour"), PROTOCOL)
    assert ended.status == "oom"
    assert ended.reason.startswith("killed by the kernel's OOM killer while warming up")
