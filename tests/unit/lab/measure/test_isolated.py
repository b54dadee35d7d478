"""`Workers` over a scripted worker: every end is a status, and only a clean worker is used again."""

import os
import signal
import sys
from pathlib import Path

import msgspec
import pytest

from peakward.lab.measure import probe, proc, process
from peakward.lab.measure.isolated import Workers
from peakward.lab.measure.messages import CalibrateRequest, Checked, Failed
from peakward.records.case import ModelCase, StepCase, Workload
from peakward.records.errors import OutOfTimeError, PeakwardError
from peakward.records.lever import Claim
from peakward.records.measurement import Protocol

SCRIPT = Path(__file__).with_name("scripted_worker.py")
PROTOCOL = Protocol()


@pytest.fixture
def case(make_shape):
    return ModelCase(model=make_shape(), workload=Workload(batch_size=1, seq_len=8), device="cpu")


@pytest.fixture
def make_workers():
    """make_workers(plan): Workers whose worker acts by plan; `events` and `pids` are kept."""
    made = []

    def make(plan, on_event=None):
        workers = Workers(argv=(sys.executable, str(SCRIPT), plan), on_event=on_event or ignore)
        made.append(workers)
        return workers

    yield make
    for each in made:
        each.__exit__(None, None, None)


@pytest.fixture
def runs_out(monkeypatch):
    """runs_out(event): a listener for whom all time has passed once a step is timed, and none before."""
    now_s = 0.0
    monkeypatch.setattr(process, "monotonic", lambda: now_s)

    def heard(event):
        nonlocal now_s
        now_s += 1e9 * (event.stage == "timing")

    return heard


def ignore(_event):
    pass


def pid(workers):
    return None if workers._process is None else workers._process.pid


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_measurement_is_assembled(make_workers, case):
    events = []
    found = make_workers("answer").measure(case, PROTOCOL, on_event=events.append)
    assert (found.status, found.reason) == ("ok", None)
    assert (found.case, found.protocol) == (case, PROTOCOL)
    assert found.environment.device_type == "cpu"
    assert found.summary.median_s.estimate == 1.0
    assert found.summary.n == 10
    assert found.validity.verdict == "stable"
    assert (found.loss, found.n_parameters) == (0.5, 7)
    assert found.wall_s > 0
    assert [each.stage for each in events] == ["starting", "timing"]


def test_a_clean_worker_is_used_again(make_workers, case):
    workers = make_workers("answer")
    events = []
    workers.measure(case, PROTOCOL)
    first = pid(workers)
    workers.measure(case, PROTOCOL, on_event=events.append)
    assert pid(workers) == first
    assert [each.stage for each in events] == ["timing"]


def test_the_latest_start_is_known(make_workers, case):
    workers = make_workers("answer")
    assert workers.start_s is None
    workers.measure(case, PROTOCOL)
    took_s = workers.start_s
    assert took_s > 0
    workers.measure(case, PROTOCOL)
    assert workers.start_s == took_s
    workers.close()
    workers.measure(case, PROTOCOL)
    assert workers.start_s != took_s


@pytest.fixture
def many_cores(monkeypatch):
    monkeypatch.setattr(proc, "cores", lambda: frozenset(range(16)))


def test_prepared_workers_are_taken_one_for_each_new_worker(make_workers, case, many_cores):
    workers = make_workers("answer")
    workers.prepare(2)
    spares = [each.pid for each in workers._spares]
    assert len(spares) == 2
    for expected in spares:
        assert workers.measure(case, PROTOCOL).status == "ok"
        assert pid(workers) == expected
        workers.close()
    assert workers.measure(case, PROTOCOL).status == "ok"
    assert pid(workers) not in spares


def test_the_start_of_a_prepared_worker_is_not_taken_for_a_whole_one(
    make_workers, case, many_cores
):
    workers = make_workers("answer")
    workers.measure(case, PROTOCOL)
    took_s = workers.start_s
    workers.close()
    workers.prepare(2)
    assert workers.turns((case,), PROTOCOL).status == "ok"
    workers.close()
    assert workers.turns((case,), PROTOCOL).status == "ok"
    assert workers.start_s == took_s


def test_a_prepared_worker_that_died_is_passed_over(make_workers, case, many_cores):
    workers = make_workers("answer")
    workers.prepare(2)
    first, second = workers._spares
    first.kill()
    assert workers.measure(case, PROTOCOL).status == "ok"
    assert pid(workers) == second.pid


def test_leaving_the_block_ends_prepared_workers(case, many_cores):
    with Workers(argv=(sys.executable, str(SCRIPT), "answer")) as workers:
        workers.prepare(2)
        spares = [each.pid for each in workers._spares]
    assert all(map(is_gone, spares))


def test_a_cold_worker_is_no_prepared_one(make_workers, case, many_cores):
    """A prepared one would find the compiler's cache on disk."""
    workers = make_workers("answer")
    workers.prepare(2)
    workers.measure(case, msgspec.structs.replace(PROTOCOL, fresh_process=True))
    assert len(workers._spares) == 2


def test_what_is_timed_in_turn_waits_for_prepared_workers_to_be_ready(
    make_workers, case, many_cores
):
    workers = make_workers("answer")
    workers.prepare(3)
    workers.turns((case,), PROTOCOL)
    assert [each.worker_pid is not None for each in workers._spares] == [True, True]


def test_on_two_cores_one_worker_is_prepared(make_workers, monkeypatch):
    """There imports at once would take as long as one after another."""
    monkeypatch.setattr(proc, "cores", lambda: frozenset(range(2)))
    workers = make_workers("answer")
    workers.prepare(3)
    assert len(workers._spares) == 1


def test_a_soiled_worker_is_replaced(make_workers, case):
    workers = make_workers("soiled")
    assert workers.measure(case, PROTOCOL).status == "ok"
    assert pid(workers) is None


def test_a_worker_whose_conversation_broke_answers_nothing_more(make_workers, case):
    workers = make_workers("answer")
    workers.measure(case, PROTOCOL)
    before = pid(workers)

    def broken(_event):
        raise RuntimeError("a listener's own fault")

    with pytest.raises(RuntimeError, match="own fault"):
        workers.measure(case, PROTOCOL, on_event=broken)
    assert is_gone(before)
    assert workers.measure(case, PROTOCOL).status == "ok"


def test_a_fresh_process_is_neither_an_old_one_nor_kept(make_workers, case):
    workers = make_workers("answer")
    workers.measure(case, PROTOCOL)
    old = pid(workers)
    fresh = msgspec.structs.replace(PROTOCOL, fresh_process=True)
    assert workers.measure(case, fresh).status == "ok"
    assert pid(workers) is None
    assert is_gone(old)


@pytest.mark.parametrize(
    ("act", "status", "reason"),
    [
        ("fail", "oom", "too big"),
        (
            "exit",
            "crashed",
            "exited with code 3 while timing case 2, 12 steps done: Traceback",
        ),
        ("SIGSEGV", "crashed", "killed by SIGSEGV while timing"),
        ("SIGKILL", "crashed", "killed by SIGKILL while timing"),
        ("hang", "timeout", "not done after 3 s, while timing case 2, 12 steps done"),
        ("stop", "timeout", "not done after 3 s, while timing"),
    ],
)
def test_every_end_is_a_status_and_the_next_case_runs(
    make_workers, case, act, status, reason, runs_out
):
    workers = make_workers(act, on_event=runs_out if status == "timeout" else None)
    timeout_s = 3.0 if status == "timeout" else 600.0
    ended = workers.measure(case, msgspec.structs.replace(PROTOCOL, timeout_s=timeout_s))
    assert ended.status == status
    assert ended.reason.startswith(reason)
    assert ended.summary is None
    assert ended.runs == ()
    assert pid(workers) is None
    workers._on_event = ignore
    workers._argv = (*workers._argv[:2], "answer")
    assert workers.measure(case, PROTOCOL).status == "ok"


def test_a_kill_that_the_kernel_counted_is_an_oom(make_workers, case, monkeypatch):
    counts = iter([{"/proc/vmstat": 4}, {"/proc/vmstat": 5}])
    monkeypatch.setattr(proc, "oom_kills", lambda: next(counts))
    ended = make_workers("SIGKILL").measure(case, PROTOCOL)
    assert ended.status == "oom"
    assert ended.reason.startswith("killed by the kernel's OOM killer while timing")


def test_a_worker_that_cannot_start_is_a_crash(case):
    with Workers(argv=(sys.executable, "-c", "raise SystemExit('no torch here')")) as workers:
        ended = workers.measure(case, PROTOCOL)
    assert ended.status == "crashed"
    assert ended.reason == "exited with code 1 while starting: no torch here, tried twice"
    assert not ended.final


def test_no_process_at_all_is_a_crash_and_is_measured_again(make_workers, case, monkeypatch):
    """Where the machine has no process or no memory left to give."""
    workers = make_workers("answer")

    def none_left(*_args, **_kwargs):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(process.subprocess, "Popen", none_left)
        n_open = len(list(Path("/proc/self/fd").iterdir()))
        ended = workers.measure(case, PROTOCOL)
        assert len(list(Path("/proc/self/fd").iterdir())) == n_open
    assert ended.status == "crashed"
    assert ended.reason == (
        "no worker could be started: Resource temporarily unavailable, tried twice"
    )
    assert not ended.final
    assert workers.measure(case, PROTOCOL).status == "ok"


def started(events):
    return [each.stage for each in events].count("starting")


@pytest.mark.parametrize(
    ("act", "n_starts", "final"),
    [
        ("SIGKILL", 2, False),
        ("SIGTERM", 2, False),
        ("SIGHUP", 2, False),
        ("SIGSEGV", 1, True),
        ("exit", 1, True),
        ("fail", 1, True),
    ],
)
def test_what_was_taken_away_is_tried_again_once(make_workers, case, act, n_starts, final):
    events = []
    ended = make_workers(act).measure(case, PROTOCOL, on_event=events.append)
    assert started(events) == n_starts
    assert ended.final == final
    assert ended.reason.endswith(", tried twice") == (n_starts == 2)


@pytest.mark.parametrize("ask", ["measure", "turns", "rates", "profile"])
def test_a_worker_that_was_killed_costs_its_request_nothing(
    make_workers, case, tmp_path, monkeypatch, ask
):
    monkeypatch.setenv("FIRST_OF_ALL", str(tmp_path / "was-here"))
    workers, path = make_workers("killed-at-first"), tmp_path / "t.json.gz"
    match ask:
        case "measure":
            assert workers.measure(case, PROTOCOL).final
        case "turns":
            assert workers.turns((case, case), PROTOCOL).status == "ok"
        case "rates":
            assert workers.rates("levels", "cpu").levels
        case "profile":
            assert workers.profile(case, path).path == str(path)


def test_a_kill_for_memory_is_not_repeated_at_once_but_by_the_next_run(
    make_workers, case, monkeypatch
):
    counts, events = iter([{"/proc/vmstat": 4}, {"/proc/vmstat": 5}]), []
    monkeypatch.setattr(proc, "oom_kills", lambda: next(counts))
    ended = make_workers("SIGKILL").measure(case, PROTOCOL, on_event=events.append)
    assert (ended.status, ended.final, started(events)) == ("oom", False, 1)


def test_ctrl_c_is_not_tried_again(make_workers, case):
    events = []

    def stop(event):
        events.append(event)
        when_timing(press)(event)

    ended = make_workers("hang").measure(case, PROTOCOL, on_event=stop)
    assert (ended.interrupted, ended.final, started(events)) == (True, False, 1)


def test_a_worker_that_died_between_two_cases_is_replaced(make_workers, case):
    workers = make_workers("answer")
    workers.measure(case, PROTOCOL)
    before = pid(workers)
    os.kill(workers._process.worker_pid, signal.SIGKILL)
    os.waitid(os.P_PID, before, os.WEXITED | os.WNOWAIT)
    events = []
    assert workers.measure(case, PROTOCOL, on_event=events.append).status == "ok"
    assert pid(workers) != before
    assert started(events) == 1


def test_junk_in_the_pipe_of_answers_is_a_row_and_the_next_case_runs(make_workers, case):
    workers = make_workers("junk")
    ended = workers.measure(case, PROTOCOL)
    assert (ended.status, ended.final) == ("crashed", True)
    assert ended.reason.startswith(
        "wrote what is no answer into the pipe of its answers while timing"
    )
    workers._argv = (*workers._argv[:2], "answer")
    assert workers.measure(case, PROTOCOL).status == "ok"


def test_a_check_tells_what_is_wrong_in_every_configuration(
    make_workers, make_module_case, runs_out
):
    """Out of memory it says nothing: another precision may fit. Nor where its worker was taken away."""
    case = make_module_case("py:tiny_gpt:build")
    assert make_workers("answer").check(case) == Checked()
    assert make_workers("fail").check(case) == Checked()
    assert make_workers("SIGKILL").check(case) == Checked()
    assert make_workers("SIGSEGV").check(case).status == "crashed"
    assert make_workers("hang", on_event=runs_out).check(case, 1.0).status == "timeout"
    with pytest.raises(PeakwardError, match="expected a module that is there"):
        make_workers("missing").check(case)


def press(n_times=1):
    """Ctrl-C from a terminal, which only this process receives."""
    for _ in range(n_times):
        os.kill(os.getpid(), signal.SIGINT)


def when_timing(action):
    return lambda event: action() if event.stage == "timing" else None


def test_ctrl_c_ends_the_case_and_the_next_one_runs(make_workers, case):
    workers = make_workers("hang", on_event=when_timing(press))
    ended = workers.measure(case, PROTOCOL)
    assert ended.status == "crashed"
    assert ended.reason == "interrupted by Ctrl-C while timing case 2, 12 steps done"
    workers._on_event = ignore
    workers._argv = (*workers._argv[:2], "answer")
    assert workers.measure(case, PROTOCOL).status == "ok"


def same(case):
    return Claim(base=case, candidate=case, declared="exact")


def test_ctrl_c_at_a_check_of_numbers_is_no_verdict(make_workers, case):
    workers = make_workers("hang", on_event=when_timing(press))
    with pytest.raises(KeyboardInterrupt):
        workers.numerics([same(case)])


def test_ctrl_c_twice_ends_the_run_after_the_case_was_handed_over(make_workers, case):
    workers = make_workers("hang", on_event=when_timing(lambda: press(2)))
    assert workers.measure(case, PROTOCOL).reason.startswith("interrupted")
    with pytest.raises(KeyboardInterrupt):
        workers.measure(case, PROTOCOL)


def test_raise_if_stopping_ends_the_run_sooner(make_workers, case):
    workers = make_workers("hang", on_event=when_timing(lambda: press(2)))
    workers.measure(case, PROTOCOL)
    with pytest.raises(KeyboardInterrupt):
        workers.raise_if_stopping()


def test_leaving_the_block_ends_the_worker(case):
    with Workers(argv=(sys.executable, str(SCRIPT), "answer")) as workers:
        workers.measure(case, PROTOCOL)
        left = pid(workers)
    assert is_gone(left)


def test_turns(make_workers, case):
    workers = make_workers("answer")
    timed = workers.turns((case, case, case), PROTOCOL)
    assert timed.status == "ok"
    assert [turn.median_s for turn in timed.turns] == [1.0, 2.0, 3.0]
    first = pid(workers)
    workers.turns((case,), PROTOCOL)
    assert pid(workers) == first, "the worker is used again"


@pytest.mark.parametrize("act", ["fail", "SIGSEGV"])
def test_failed_turns_name_the_case(make_workers, case, act):
    timed = make_workers(act).turns((case, case), PROTOCOL)
    assert timed.status in ("oom", "crashed")
    assert timed.failed == 1
    assert timed.turns == ()
    assert timed.reason


@pytest.mark.parametrize(("act", "ended_by"), [("SIGKILL", "outside"), ("SIGSEGV", "case")])
def test_failed_turns_say_who_ended_them(make_workers, case, act, ended_by):
    assert make_workers(act).turns((case, case), PROTOCOL).ended_by == ended_by


def test_turns_have_as_much_time_as_all_their_cases(make_workers, case):
    brief = msgspec.structs.replace(PROTOCOL, timeout_s=0.2)
    timed = make_workers("hang").turns((case, case, case), brief)
    assert timed.status == "timeout"
    assert "not done after 0.6 s" in timed.reason


def test_numerics(make_workers, case):
    (held,) = make_workers("answer").numerics([same(case)])
    assert held.verdict == "holds"
    (failed,) = make_workers("fail").numerics([same(case)])
    assert failed.verdict == "not computed"
    assert failed.reason == "oom: too big"
    assert failed.declared == "exact"


def test_claims_that_fail_together_are_asked_one_by_one(make_workers, case):
    events = []
    workers = make_workers("fail", on_event=events.append)
    found = workers.numerics([same(case), same(case)])
    assert [each.reason for each in found] == ["oom: too big"] * 2
    assert [each.stage for each in events].count("starting") == 3


def test_calibrate(make_workers):
    found = make_workers("answer").calibrate("cpu")
    assert found.copy_bytes_per_s == 1e9
    assert found.environment.device_type == "cpu"
    assert found.doubts == ("it was crowded",)
    with pytest.raises(PeakwardError, match="expected to calibrate cpu, got oom: too big"):
        make_workers("fail").calibrate("cpu")


def test_the_quick_calibration_asks_for_the_ceilings_alone(make_workers, monkeypatch):
    workers, asked = make_workers("answer"), []
    ask = workers._ask

    def heard(request, *args, **kwargs):
        asked.append(request)
        return ask(request, *args, **kwargs)

    monkeypatch.setattr(workers, "_ask", heard)
    assert workers.calibrate("cpu").rates is None
    assert asked == [CalibrateRequest(device_type="cpu")]


def test_rates(make_workers):
    workers = make_workers("answer")
    (level,) = workers.rates("levels", "cpu").levels
    assert level.bytes_per_s == 1e9


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        ("fail", "oom: too big"),
        ("SIGSEGV", "crashed: killed by SIGSEGV while timing case 2, 12 steps done"),
    ],
)
def test_a_subject_whose_worker_fails_is_absent_and_the_next_is_measured(make_workers, act, reason):
    workers = make_workers(f"{act},answer")
    (absent,) = workers.rates("attention", "cpu").absent
    assert (absent.subject, absent.figure) == ("attention", None)
    assert absent.reason.startswith(reason)
    workers._argv = (*workers._argv[:2], "answer")
    assert len(workers.rates("levels", "cpu").levels) == 1


def test_ctrl_c_ends_a_calibration(make_workers):
    workers = make_workers("hang", on_event=when_timing(press))
    with pytest.raises(KeyboardInterrupt):
        workers.rates("levels", "cpu")
    with pytest.raises(KeyboardInterrupt):
        workers.calibrate("cpu")


def test_first_step_is_of_a_fresh_process(make_workers, case):
    workers = make_workers("answer")
    workers.measure(case, PROTOCOL)
    assert workers.first_step(case).profiled_s == 1.0
    assert pid(workers) is None
    assert make_workers("fail").first_step(case) is None


def test_a_profile_is_a_whole_file(make_workers, case, tmp_path):
    found = make_workers("answer").profile(case, tmp_path / "t.json.gz", n_steps=2)
    assert (found.n_steps, found.profiled_step_s) == (2, 0.5)
    assert found.path == str(tmp_path / "t.json.gz")
    assert [each.name for each in tmp_path.iterdir()] == ["t.json.gz"]
    assert (tmp_path / "t.json.gz").read_bytes() == b"a trace"


def test_nothing_but_profiles_follows_a_profile_in_its_worker(make_workers, case, tmp_path):
    workers = make_workers("answer")
    workers.measure(case, PROTOCOL)
    profiler = pid(workers)
    workers.profile(case, tmp_path / "1.json.gz")
    workers.profile(case, tmp_path / "2.json.gz")
    assert pid(workers) == profiler
    assert workers.measure(case, PROTOCOL).status == "ok"
    assert is_gone(profiler)
    timing = pid(workers)
    workers.measure(case, PROTOCOL)
    assert pid(workers) == timing


def test_recorded_memory_is_a_whole_file_and_no_measurement_follows_it(
    make_workers, case, tmp_path
):
    workers = make_workers("answer")
    found = workers.record_memory(case, tmp_path / "m.pickle.gz")
    assert found.path == str(tmp_path / "m.pickle.gz")
    assert [each.name for each in tmp_path.iterdir()] == ["m.pickle.gz"]
    recorder = pid(workers)
    workers.record_memory(case, tmp_path / "2.pickle.gz")
    assert pid(workers) == recorder
    assert workers.measure(case, PROTOCOL).status == "ok"
    assert is_gone(recorder)


def test_recorded_memory_that_fails_is_a_status_and_no_file(make_workers, case, tmp_path):
    found = make_workers("fail").record_memory(case, tmp_path / "m.pickle.gz")
    assert (found.status, found.reason) == ("oom", "too big")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("act", "status", "reason"),
    [
        ("fail", "oom", "too big"),
        ("SIGSEGV", "crashed", "killed by SIGSEGV while timing"),
        ("hang", "timeout", "not done after 2 s, while timing"),
    ],
)
def test_a_profile_that_fails_is_a_status_and_no_file(
    make_workers, case, tmp_path, act, status, reason, runs_out
):
    workers = make_workers(act, on_event=runs_out if status == "timeout" else None)
    timeout_s = 2.0 if status == "timeout" else 600.0
    found = workers.profile(case, tmp_path / "t.json.gz", timeout_s=timeout_s)
    assert isinstance(found, Failed)
    assert found.status == status
    assert found.reason.startswith(reason)
    assert list(tmp_path.iterdir()) == []
    assert pid(workers) is None


def test_ctrl_c_ends_a_profile_alone(make_workers, case, tmp_path):
    workers = make_workers("hang", on_event=when_timing(press))
    assert workers.profile(case, tmp_path / "t.json.gz").reason.startswith("interrupted by Ctrl-C")
    assert list(tmp_path.iterdir()) == []
    workers._on_event = ignore
    workers._argv = (*workers._argv[:2], "answer")
    assert workers.measure(case, PROTOCOL).status == "ok"


def test_a_profile_without_a_step_is_refused(make_workers, case, tmp_path):
    with pytest.raises(PeakwardError, match="expected at least one step to profile, got 0"):
        make_workers("answer").profile(case, tmp_path / "t.json.gz", n_steps=0)


def test_a_live_step_cannot_be_sent(make_workers):
    case = StepCase(name="mine", fingerprint="0", device="cpu")
    with pytest.raises(PeakwardError, match="use measure_step"):
        make_workers("answer").measure(case, PROTOCOL)


def test_a_device_that_is_not_here_is_refused_before_anything_starts(
    make_workers, case, monkeypatch
):
    def refuse(device_type):
        raise PeakwardError("expected an NVIDIA GPU, got none")

    monkeypatch.setattr(probe, "environment", refuse)
    workers = make_workers("answer")
    with pytest.raises(PeakwardError, match="got none"):
        workers.measure(msgspec.structs.replace(case, device="cuda"), PROTOCOL)
    assert pid(workers) is None


def test_only_a_fresh_measurement_compiles_cold(make_workers, case, monkeypatch):
    seen = []
    workers = make_workers("answer")
    start = workers._start

    def watched(tell, *, cold):
        seen.append(cold)
        return start(tell, cold=cold)

    monkeypatch.setattr(workers, "_start", watched)
    fresh = msgspec.structs.replace(PROTOCOL, fresh_process=True)
    workers.measure(case, PROTOCOL)
    workers.measure(case, fresh)
    workers.turns((case, case), fresh)
    assert seen == [False, True, False]


def test_a_budget_that_ends_first_ends_the_worker_and_makes_no_result(make_workers, case):
    workers = make_workers("hang")
    workers.left_s = lambda: 0.2
    with pytest.raises(OutOfTimeError, match="its time in the budget ended while"):
        workers.measure(case, PROTOCOL)
    assert pid(workers) is None
    workers.left_s = lambda: -1.0
    with pytest.raises(OutOfTimeError, match="no time in the budget was left"):
        workers.measure(case, PROTOCOL)
    assert pid(workers) is None, "nothing was started"


def test_a_case_s_own_time_limit_is_still_its_status(make_workers, case):
    workers = make_workers("hang")
    workers.left_s = lambda: 60.0
    found = workers.measure(case, msgspec.structs.replace(PROTOCOL, timeout_s=0.2))
    assert found.status == "timeout"
