"""What becomes of an attempt."""

import pytest
import torch

from peakward.lab.measure.calibration import timing
from peakward.lab.measure.calibration.timing import Attempt, NotMeasurableError, outcome
from peakward.records.calibration import Absence, LaunchCost

COST = LaunchCost(side="host", operation="matmul", call_s=1e-6)


def raises(error):
    def measure():
        raise error

    return measure


def test_a_figure_is_itself():
    assert outcome(Attempt("matmul", lambda: COST), "launches") == COST


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NotMeasurableError("a CPU has no queue"), "a CPU has no queue"),
        (
            RuntimeError('"mm" not implemented for Float8\nmore'),
            'RuntimeError: "mm" not implemented for Float8',
        ),
        (MemoryError("too much"), "MemoryError: too much"),
    ],
)
def test_a_failure_is_an_absence_with_its_reason_in_one_line(error, reason):
    found = outcome(Attempt("matmul", raises(error)), "launches")
    assert found == Absence(subject="launches", figure="matmul", reason=reason)


def test_an_interruption_is_no_absence():
    with pytest.raises(KeyboardInterrupt):
        outcome(Attempt("matmul", raises(KeyboardInterrupt())), "launches")


@pytest.fixture
def takes(monkeypatch, stepped):
    """takes(s, ...): a call that takes these seconds in turn, the last one from then on."""
    monkeypatch.setattr(timing, "clock_for", lambda device_type: stepped)
    monkeypatch.setattr(timing, "CpuClock", lambda: stepped)
    monkeypatch.setitem(timing.TIMED_S, "cpu", 0.0)
    monkeypatch.setitem(timing.TIMED_S, "cuda", 0.0)

    def make(*seconds):
        left = list(seconds)

        def call():
            stepped.log.append("call")
            stepped.now_s += left.pop(0) if len(left) > 1 else left[0]

        return call

    return make


@pytest.mark.parametrize(
    ("call_s", "n"), [(1e-2, 1), (1e-3, 1), (0.5e-3, 2), (3e-4, 4), (1e-6, 100), (0.0, 100)]
)
def test_a_burst_takes_a_millisecond_or_a_hundred_calls(call_s, n):
    assert timing.calls_in_a_burst(call_s) == n


def test_the_median_burst_counts_and_loading_the_kernel_does_not(takes):
    # Loading, deciding, then bursts of one.
    call = takes(9.0, 0.01, 0.01, 0.2, 0.03)
    assert timing.device_s(call, "cpu") == pytest.approx(0.03)


def test_a_short_call_s_time_is_a_burst_s_share(takes, stepped):
    assert timing.device_s(takes(0.25e-3), "cpu") == pytest.approx(0.25e-3)
    assert stepped.log.count("call") == 2 + timing.MIN_BURSTS * 4


def test_bursts_go_on_until_enough_was_timed(takes, stepped, monkeypatch):
    monkeypatch.setitem(timing.TIMED_S, "cpu", 0.05)
    monkeypatch.setattr(timing, "perf_counter", lambda: stepped.now_s)
    timing.device_s(takes(0.01), "cpu")
    assert stepped.log.count("call") == 2 + 5


def test_a_slow_call_is_given_up_after_its_second(takes, stepped):
    with pytest.raises(NotMeasurableError, match=r"a call takes 2 s, more than 0\.25 s"):
        timing.device_s(takes(2.0), "cpu")
    assert stepped.log.count("call") == 2


def test_on_a_gpu_every_timed_burst_queues_behind_a_pause_as_long_as_issuing_it(
    takes, stepped, monkeypatch
):
    cycles = []

    def sleep(n):
        cycles.append(n)
        stepped.log.append("pause")
        stepped.now_s += 1.0

    monkeypatch.setattr(torch.cuda, "_sleep", sleep)
    assert timing.device_s(takes(0.5e-3), "cuda") == pytest.approx(0.5e-3)
    burst = ["pause", "mark 0", "call", "call", "mark 1", "wait 1"]
    assert stepped.log[-len(burst) :] == burst
    assert cycles == [int(3 * timing.LEAD_S * timing.CYCLES_PER_S)] * timing.MIN_BURSTS


def test_the_host_s_bursts_start_with_an_empty_queue(takes, stepped, monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: stepped.log.append("empty"))
    assert timing.host_s(takes(1e-6), "cuda") == pytest.approx(1e-6)
    burst = ["empty", "mark 0", *["call"] * timing.MAX_CALLS, "mark 1", "wait 1"]
    assert stepped.log[-len(burst) :] == burst


def test_on_a_cpu_nothing_is_waited_for(takes, stepped):
    assert timing.host_s(takes(1e-6), "cpu") == pytest.approx(1e-6)
    assert stepped.log.count("call") == 1 + timing.MIN_BURSTS * timing.MAX_CALLS


def test_a_backward_pass_s_calls_are_made_in_one_and_are_recorded(takes, stepped):
    call, passes, recorded = takes(1e-6), [], []

    def watched():
        passes.append(torch._C._current_graph_task_id())
        recorded.append(torch.is_grad_enabled())
        call()

    assert timing.backward_host_s(watched, "cpu") == pytest.approx(1e-6)
    n_bursts = 1 + timing.MIN_BURSTS  # The first starts autograd's thread.
    assert len(passes) == n_bursts * timing.MAX_CALLS
    assert -1 not in passes
    assert len(set(passes)) == n_bursts
    assert all(recorded)


def test_of_a_backward_pass_its_calls_alone_are_timed(takes, stepped, monkeypatch):
    """Behind an empty queue, in the thread that makes them, and without what begins and ends the pass."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: stepped.log.append("empty"))
    start = torch.ones((), requires_grad=True)
    monkeypatch.setattr(torch, "ones", lambda *size, **options: start)  # There is no GPU for it.
    timing.backward_host_s(takes(1e-6), "cuda")
    burst = ["reserve", "empty", "mark 0", *["call"] * timing.MAX_CALLS, "mark 1", "wait 1"]
    assert stepped.log == burst * (1 + timing.MIN_BURSTS)


def test_what_fails_in_a_backward_pass_is_an_absence():
    def fails():
        raise NotMeasurableError("no such call")

    attempt = Attempt("in a backward pass", lambda: timing.backward_host_s(fails, "cpu"))
    assert outcome(attempt, "launches").reason == "no such call"
