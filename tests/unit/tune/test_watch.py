"""A loop under watch, its windows read by a stand-in."""

import gc
from functools import partial
from pathlib import Path

import msgspec
import pytest
import torch

from peakward.api.traces import trace
from peakward.lab.measure.live import loop as live
from peakward.records.errors import PeakwardError
from peakward.records.finding import Finding
from peakward.records.loop import WatchedWindow
from peakward.tune import watch as module
from peakward.tune.watch import Watch

TRACE = Path(__file__).parents[2] / "data" / "traces" / "cpu_decoder.json.gz"
PROFILE = trace(TRACE).profile()
FOUND = Finding(
    code="LOOP001", title="t", cause="c", evidence=(), advice="a", held_back_s=1.0, beyond_s=1.0,
    share=0.5, bound=2.0,
)  # fmt: skip


def made(told=None, *, every=1000, **others):
    return Watch(
        every=every,
        n_steps=2,
        with_stack=False,
        on_findings=[].append if told is None else told.append,
        **others,
    )


def reading_of(watch, *findings):
    """As of a window that showed these."""
    found = msgspec.structs.replace(watch.diagnosis(), findings=findings)
    return WatchedWindow(profile=PROFILE, device=None, diagnosis=found)


class Clock:
    """Time that passes where a test says so: what else the machine does holds no step up."""

    now_s = 0.0

    def __call__(self):
        return self.now_s

    def starved(self, n):
        """What a loader gives that takes 2 ms for each."""
        for i in range(n):
            self.now_s += 0.002
            yield i


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(live, "LiveLoop", partial(live.LiveLoop, clock=clock))
    return clock


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"n_steps": 0}, "1 to 20 steps, got n_steps=0"),
        ({"n_steps": 21}, "got n_steps=21"),
        ({"every": 3, "n_steps": 2}, "at least 4 apart, got every=3"),
    ],
)
def test_settings_are_checked_before_the_loop(settings, said):
    with pytest.raises(PeakwardError, match=said):
        Watch(**{"every": 100, "n_steps": 3} | settings, with_stack=False, on_findings=print)


def test_outside_its_block_it_says_so():
    watch = made()
    for act in (watch.step, lambda: watch.batches([]), lambda: watch.times):
        with pytest.raises(PeakwardError, match="its with block"):
            act()
    with watch:
        pass
    with pytest.raises(PeakwardError, match="of its own for each loop"), watch:
        pass


def test_a_loop_too_short_for_a_window_is_judged_by_its_times(clock):
    told = []
    with made(told) as watch:
        for _ in watch.batches(clock.starved(40)):
            clock.now_s += 0.001
            watch.step()
        assert told == []
    assert watch.times.waited_s == pytest.approx(2 / 3 * watch.times.total_s)
    assert watch.profile is None
    codes = [each.code for each in watch.findings]
    assert codes[0] == "LOOP001"
    assert [each.code for each in told[0].findings] == codes
    assert watch.diagnosis().basis == "watched step"


def optimizer():
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    return torch.optim.SGD([parameter], lr=0.1)


def test_a_loop_that_marks_no_steps_is_watched_by_its_optimizer(clock, capsys):
    told, update = [], optimizer()
    with made(told) as watch:
        for _ in watch.batches(clock.starved(40)):
            update.step()
    assert watch.times.n_steps >= 30
    assert watch.findings[0].code == "LOOP001"
    assert told
    assert capsys.readouterr().err == ""


def test_steps_that_are_marked_are_not_counted_twice(clock):
    update = optimizer()
    with made() as marked:
        for _ in clock.starved(30):
            update.step()
            marked.step()
    with made() as plain:
        for _ in clock.starved(30):
            plain.step()
    assert marked.times.n_steps == plain.times.n_steps


def test_a_loop_without_steps_is_told_how_to_mark_them(capsys):
    with made():
        optimizer().step()
    assert "call watch.step() at the end of each" in capsys.readouterr().err


def test_a_loop_too_short_for_anything_is_not_judged(clock):
    told = []
    with made(told) as watch:
        for _ in watch.batches(clock.starved(4)):
            watch.step()
    assert told == []
    assert watch.findings == ()
    assert {"LOOP001", "LOOP002", "LOOP003"} <= {
        each.code for each in watch.diagnosis().abstentions
    }


def test_after_an_exception_nothing_is_told_and_all_is_as_before(clock):
    told, callbacks = [], list(gc.callbacks)
    with pytest.raises(ZeroDivisionError), made(told) as watch:
        for _ in watch.batches(clock.starved(30)):
            watch.step()
        _ = 1 / 0
    assert told == []
    assert gc.callbacks == callbacks
    assert not Path(watch._folder.name).exists()
    assert watch.findings[0].code == "LOOP001", "what was seen is still to be had"


def test_what_was_told_before_is_not_told_at_the_end(clock):
    told = []
    with made(told) as watch:
        for _ in watch.batches(clock.starved(40)):
            watch.step()
        watch._heard(reading_of(watch, FOUND))
    assert len(told) == 1 and told[0].findings == (FOUND,)


def test_a_callback_that_raises_is_said_once(clock, capsys):
    def raises(_found):
        raise KeyError("mine")

    watch = Watch(every=1000, n_steps=2, with_stack=False, on_findings=raises)
    with watch:
        for _ in watch.batches(clock.starved(30)):
            watch.step()
        watch._heard(reading_of(watch, FOUND))
        watch._heard(reading_of(watch, FOUND))
    err = capsys.readouterr().err
    assert err == "peakward watch: on_findings raised KeyError: 'mine'; your loop goes on\n"


def test_nothing_is_told_where_nothing_was_found():
    told = []
    with made(told) as watch:
        watch.step()
        watch._heard(reading_of(watch))
        assert told == []


def test_the_last_window_is_waited_for_only_after_a_loop_that_ended(monkeypatch, capsys):
    waits = []

    def finish(self, wait_s):
        waits.append(wait_s)
        return False

    monkeypatch.setattr(module.WindowReader, "finish", finish)
    with made():
        pass
    with pytest.raises(KeyboardInterrupt), made():
        raise KeyboardInterrupt
    assert waits == [module.EXIT_WAIT_S, 0.0]
    assert capsys.readouterr().err.count("left out") == 1
