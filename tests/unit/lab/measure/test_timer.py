"""The timing loop, on a clock that only moves when a step says so."""

import gc

import pytest

from peakward.lab.measure import timer
from peakward.lab.measure.clock import CpuClock
from peakward.records.measurement import Protocol


class FakeClock:
    """A device that lies behind its host: marks carry the device's time, waits are counted."""

    def __init__(self, look_back=2):
        self.look_back = look_back
        self.now_s = 0.0
        self.waits = []
        self.issued = 0

    def reserve(self, n):
        self.marks = [None] * n

    def mark(self, i):
        assert self.marks[i] is None, "a mark made twice"
        self.marks[i] = self.now_s
        self.issued = i

    def wait(self, i):
        assert self.marks[i] is not None, "waiting for what was never issued"
        self.waits.append((i, self.issued))

    def between_s(self, i, j):
        return self.marks[j] - self.marks[i]


def stepping(clock, durations):
    """A step that takes the next of these seconds, the last one for ever."""
    series = iter(durations)
    last = [0.0]

    def step(mark=None):
        last[0] = next(series, last[0])
        clock.now_s += last[0]

    return step


def never(_progress):
    return False


@pytest.fixture(autouse=True)
def look_always(monkeypatch):
    """The clock of these tests is not the one that says when to look."""
    monkeypatch.setattr(timer, "LOOK_PERIOD_S", 0.0)


def test_times_are_the_differences_of_successive_marks():
    clock = FakeClock()
    step = stepping(clock, [3.0, 1.0, 2.0, 1.0])
    assert timer.run_steps(step, clock, max_steps=4, done=never) == (3.0, 1.0, 2.0, 1.0)


def test_no_steps_give_no_times():
    clock = FakeClock()
    assert timer.run_steps(stepping(clock, [1.0]), clock, max_steps=0, done=never) == ()


@pytest.mark.parametrize(("look_back", "lead"), [(0, 0), (2, 2)])
def test_the_host_keeps_a_bounded_lead_over_slow_steps(look_back, lead):
    clock = FakeClock(look_back)
    timer.run_steps(stepping(clock, [1.0]), clock, max_steps=20, done=never)
    *during, last = clock.waits
    assert last == (20, 20)
    assert {issued - reached for reached, issued in during} == {lead}


def test_short_steps_are_issued_many_at_a_time():
    clock = FakeClock()
    looks = []

    def done(progress):
        looks.append(progress.n_issued)
        return False

    times = timer.run_steps(stepping(clock, [1e-4]), clock, max_steps=200, done=done)
    assert len(times) == 200
    assert looks == [1, 2, 3, 53, 103, 153, 200]


def test_done_ends_it_with_every_issued_step_timed():
    clock = FakeClock()
    seen = []

    def done(progress):
        seen.append((progress.n_ended, len(progress.look()), progress.n_issued))
        return progress.n_issued == 5

    times = timer.run_steps(stepping(clock, [1.0]), clock, max_steps=50, done=done)
    assert len(times) == 5
    assert seen == [(0, 0, 1), (0, 0, 2), (1, 1, 3), (2, 2, 4), (3, 3, 5)]


def test_a_sample_is_bounded_and_evenly_spaced():
    clock = FakeClock(0)
    timer.run_steps(
        stepping(clock, [float(i) for i in range(600)]), clock, max_steps=600, done=never
    )
    assert timer._sample(clock, 600) == [float(i) for i in range(0, 600, 6)]
    assert timer._sample(clock, 100) == [float(i) for i in range(100)]
    assert timer._sample(clock, 0) == []


def test_nothing_is_read_but_where_a_rule_looks(monkeypatch):
    clock, read = FakeClock(0), []
    monkeypatch.setattr(clock, "between_s", lambda i, j: read.append((i, j)) or 1.0)
    timer.run_steps(stepping(clock, [1.0]), clock, max_steps=5, done=never)
    assert len(read) == 5 + 5  # the last step of each chunk, and all at the end
    read.clear()
    timer.run_steps(stepping(clock, [1.0]), clock, max_steps=5, done=lambda p: not p.look())
    assert len(read) == 5 + (1 + 2 + 3 + 4 + 5) + 5


def test_a_look_starts_the_time_since_it_anew(monkeypatch):
    now_s = iter(range(100))
    monkeypatch.setattr(timer, "perf_counter", lambda: float(next(now_s)))
    clock, since = FakeClock(), []

    def done(progress):
        since.append(progress.since_look_s)
        if progress.n_issued == 2:
            progress.look()
        return False

    timer.run_steps(stepping(clock, [1.0]), clock, max_steps=4, done=done)
    assert since == [1.0, 2.0, 1.0, 2.0]


def test_a_fixed_warmup_is_exactly_that_long_and_never_called_unsteady():
    clock = FakeClock(0)
    protocol = Protocol(warmup_steps=3, min_steps=4, max_steps=4)
    step = stepping(clock, [9.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.5])
    timing = timer.time_steps(step, protocol, clock)
    assert timing.run.warmup_s == (9.0, 5.0, 4.0)
    assert timing.run.steps_s == (3.0, 2.0, 1.0, 0.5)
    assert timing.unsteady is None


def test_no_warmup_times_the_very_first_step():
    clock = FakeClock()
    protocol = Protocol(warmup_steps=0, min_steps=2, max_steps=2)
    timing = timer.time_steps(stepping(clock, [9.0, 1.0]), protocol, clock)
    assert timing.run.warmup_s == ()
    assert timing.run.steps_s == (9.0, 1.0)


def test_warmup_goes_on_until_steady():
    clock = FakeClock(0)
    falling = [500.0, 30.0, 20.0, 15.0, 12.0]
    protocol = Protocol(min_steps=10, max_steps=10, max_timed_s=100.0)
    timing = timer.time_steps(stepping(clock, [*falling, 10.0]), protocol, clock)
    assert len(timing.run.warmup_s) > len(falling)
    assert set(timing.run.steps_s) == {10.0}
    assert timing.unsteady is None


def test_a_step_that_never_settles_is_called_unsteady():
    clock = FakeClock(0)
    slowing = [1.0 + 0.05 * i for i in range(200)]
    protocol = Protocol(min_steps=20, max_steps=20)
    timing = timer.time_steps(stepping(clock, slowing), protocol, clock)
    assert len(timing.run.warmup_s) == 100
    assert "no steady step time after 100 warm-up steps" in timing.unsteady


def test_the_watch_sees_the_timed_steps_alone():
    clock = FakeClock()
    steps = []

    class Watch:
        def __enter__(self):
            steps.append("in")

        def __exit__(self, *_):
            steps.append("out")

    protocol = Protocol(warmup_steps=2, min_steps=3, max_steps=3)
    timer.time_steps(lambda: steps.append("step"), protocol, clock, watch=Watch())
    assert steps == ["step", "step", "in", "step", "step", "step", "out"]


def test_the_collector_is_paused_while_timing_and_then_as_before(nothing_frozen):
    clock, seen = FakeClock(), []
    protocol = Protocol(warmup_steps=1, min_steps=2, max_steps=2)
    timer.time_steps(
        lambda: seen.append((gc.isenabled(), gc.get_freeze_count() > 0)), protocol, clock
    )
    assert seen == [(True, False), (False, True), (False, True)]
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_a_paused_collector_comes_back_when_a_step_raises():
    def fail():
        raise ValueError

    with pytest.raises(ValueError):
        timer.time_steps(fail, Protocol(warmup_steps=0), FakeClock())
    assert gc.isenabled()
    gc.disable()
    try:
        with timer.collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_phases_are_summed_over_micro_batches():
    names = ["forward", "backward", "forward", "backward", "optimizer", None] * 3
    spans = [1.0, 2.0, 1.5, 2.5, 4.0, 100.0] * 3
    phases = {each.phase: each for each in timer.phase_times(names, spans)}
    assert list(phases) == ["forward", "backward", "optimizer"]
    assert phases["forward"].median_s == 2.5
    assert phases["backward"].median_s == 4.5
    assert phases["optimizer"].median_s == 4.0
    assert {each.n for each in phases.values()} == {3}


def test_the_phase_median_is_over_steps():
    names = ["forward", None] * 3
    assert timer.phase_times(names, [1.0, 0.0, 50.0, 0.0, 2.0, 0.0])[0].median_s == 2.0


@pytest.mark.parametrize(("step_s", "n_steps"), [(10.0, 3), (0.1, 10), (1e-4, 20)])
def test_phase_steps_take_about_a_second(step_s, n_steps):
    clock = FakeClock()

    def step(mark):
        for phase in ("forward", "backward"):
            mark(phase)
            clock.now_s += step_s / 2
        mark(None)

    forward, backward = timer.time_phases(step, clock, step_s=step_s)
    assert forward.n == backward.n == n_steps
    assert forward.median_s == pytest.approx(step_s / 2)


def test_on_a_real_clock_the_times_add_up():
    clock = CpuClock()
    times = timer.run_steps(lambda: None, clock, max_steps=500, done=never)
    assert len(times) == 500
    assert min(times) > 0
    assert sum(times) == pytest.approx(clock.between_s(0, 500))
