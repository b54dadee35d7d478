"""A live loop's watch: what a step costs, when windows are taken, and that the loop never suffers."""

import gc
from itertools import count

import pytest
import torch
from torch.autograd.profiler import profile as Kineto
from torch.profiler import ProfilerActivity, profile, schedule

from peakward.lab.measure.live import loop as module
from peakward.lab.measure.live.loop import (
    NESTED,
    OTHERS,
    LiveLoop,
    OptimizerSteps,
    OtherProfilers,
    Window,
    is_profiled,
)
from peakward.traces.trace import Trace


class Reader:
    """Keeps what it is given."""

    def __init__(self):
        self.ready, self.read_ = True, []

    def is_ready(self):
        return self.ready

    def read(self, trace, times):
        self.read_.append((trace, times))


class Clock:
    """Counts its readings."""

    def __init__(self):
        self._ticks, self.n = count(), 0

    def __call__(self):
        self.n += 1
        return float(next(self._ticks))


@pytest.fixture(autouse=True)
def without_collections():
    enabled = gc.isenabled()
    gc.disable()
    yield
    assert module._WATCHING.acquire(blocking=False), "a watch was left on"
    module._WATCHING.release()
    if enabled:
        gc.enable()


@pytest.fixture
def made(tmp_path):
    """made(**settings): a loop with a reader, a clock and what it said."""

    def make(**settings):
        reader, clock, said = Reader(), Clock(), []
        settings = {"every": 10, "n_steps": 2, "with_stack": False} | settings
        live = LiveLoop(folder=tmp_path, reader=reader, say=said.append, clock=clock, **settings)
        return live, reader, clock, said

    return make


def test_a_plain_step_reads_the_clock_twice_and_waits_for_nothing(made, monkeypatch):
    def refuse():
        raise AssertionError("a plain step waited for the GPU")

    monkeypatch.setattr(torch.cuda, "synchronize", refuse)
    live, reader, clock, _ = made(every=1000)
    with live:
        before = clock.n
        for _ in range(100):
            live.step()
        assert clock.n == before + 200
    assert live.times().total_s == 97.0, "a tick each, but for the first three"
    assert not reader.read_


def test_a_batch_reads_it_twice_more(made):
    live, _, clock, _ = made(every=1000)
    with live:
        before = clock.n
        assert list(live.batches(range(50))) == list(range(50))
        assert clock.n == before + 2 * 51, "and once more to learn that there is none"


def test_a_wait_is_told_apart_from_a_collection_in_it(made):
    def batches():
        for i in range(4):
            gc.collect()
            yield i

    live, _, _, _ = made(every=1000)
    with live:
        for _ in live.batches(batches()):
            live.step()
    found = live.times()
    assert (found.n_steps, found.waited_s, found.collected_s) == (1, 2.0, 1.0)


def test_what_was_not_drawn_is_not_known(made):
    live, _, _, _ = made()
    with live:
        live.step()
    assert live.times().waited_s is None


def test_windows_come_every_so_many_steps(made):
    live, reader, _, said = made()
    seen = []
    with live:
        for _ in range(40):
            torch.ones(2).exp()
            live.step()
            seen.append(is_profiled())
    recorded = [i + 1 for i, each in enumerate(seen) if each]
    assert recorded == [11, 12, 24, 25, 37, 38], "attached in 11, recorded 12 and 13"
    assert [path.name for path, _ in reader.read_] == [f"window-{i}.json" for i in range(3)]
    times = reader.read_[-1][1]
    assert (times.n_steps, times.n_windows) == (30 - 3, 3)
    assert live.times().windows_s == 3 * 4.0, (
        "a tick for attaching, one for each boundary of a step"
    )
    assert said == []


def test_no_window_while_the_last_one_is_being_read(made):
    live, reader, _, _ = made()
    reader.ready = False
    with live:
        for _ in range(30):
            live.step()
        assert not reader.read_
        reader.ready = True
        for _ in range(4):
            live.step()
        assert len(reader.read_) == 1


def test_an_exception_passes_and_closes_the_profiler(made):
    live, _, _, _ = made()
    callbacks = list(gc.callbacks)
    with pytest.raises(ZeroDivisionError), live:
        for _ in range(11):
            live.step()
        assert is_profiled()
        _ = 1 / 0
    assert not is_profiled()
    assert gc.callbacks == callbacks


def test_ctrl_c_passes_while_a_profiler_is_attached(made):
    live, _, _, _ = made()
    with pytest.raises(KeyboardInterrupt), live:
        for _ in range(10):
            live.step()
        raise KeyboardInterrupt
    assert not is_profiled()


def test_a_loaders_exception_passes(made):
    def broken():
        yield 1
        raise ValueError("damaged")

    live, _, _, said = made()
    with pytest.raises(ValueError, match="damaged"), live:
        for _ in live.batches(broken()):
            live.step()
    assert said == []


def test_an_error_of_ours_is_said_once_and_the_loop_goes_on(made, monkeypatch):
    def fails(*_given, **_named):
        raise RuntimeError("no\nprofiler here")

    monkeypatch.setattr(module, "Window", fails)
    live, _, _, said = made()
    callbacks = list(gc.callbacks)
    with live:
        for _ in range(50):
            live.step()
        assert gc.callbacks == callbacks
        assert list(live.batches([1, 2])) == [1, 2]
    assert said == [
        "RuntimeError: no profiler here; your loop goes on, the watch ends here",
    ]
    assert live.times().n_steps == 10 - 3


def test_an_error_in_a_window_closes_it(made):
    live, reader, _, said = made()
    reader.read = lambda *_: 1 / 0
    with live:
        for _ in range(30):
            live.step()
            torch.ones(2)
        assert not is_profiled()
    assert len(said) == 1


def test_a_watch_inside_another_is_quiet(made):
    outer, _, _, _ = made()
    inner, reader, _, said = made(every=5)
    with outer:
        with inner:
            for _ in range(9):
                inner.step()
        assert said == [NESTED]
        for _ in range(3 + 1):
            outer.step()
    assert (inner.times().n_steps, outer.times().n_steps) == (0, 1)
    assert not reader.read_


def test_another_profiler_keeps_its_place(made):
    live, reader, _, said = made()
    with live:
        with profile(activities=[ProfilerActivity.CPU]) as theirs:
            for _ in range(35):
                torch.ones(2).exp()
                live.step()
        assert said == [OTHERS]
        assert not reader.read_
        for _ in range(10):
            live.step()
    assert sum(each.name == "aten::exp" for each in theirs.events()) == 35
    assert len(reader.read_) == 1, "once it has ended"


@pytest.mark.parametrize(("first", "last"), [(11, 11), (12, 12), (11, 20), (12, 20)])
def test_a_window_makes_room_for_another_profiler(made, first, last):
    """Where it is being attached (11) or records (12): torch would end the process otherwise."""
    live, reader, _, said = made()
    theirs = profile(activities=[ProfilerActivity.CPU])
    with live:
        for n in range(1, last + 16):
            if n == first:
                theirs.start()
            torch.ones(2).exp()
            if n == last:
                theirs.stop()
            live.step()
    assert sum(each.name == "aten::exp" for each in theirs.events()) == last - first + 1
    assert said == [OTHERS]
    assert len(reader.read_) == 1, "after it"


@pytest.mark.parametrize(("wait", "warmup"), [(9, 6), (3, 4), (12, 1), (0, 9)])
def test_a_profiler_with_a_schedule_loses_no_cycle(made, wait, warmup):
    live, _, _, said = made()
    seen = []
    theirs = profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=wait, warmup=warmup, active=2, repeat=2),
        on_trace_ready=lambda it: seen.append(
            sum(each.name == "aten::exp" for each in it.events())
        ),
    )
    with theirs, live:
        for _ in range(60):
            torch.ones(2).exp()
            theirs.step()
            live.step()
    assert seen == [2, 2]
    assert said == [OTHERS]


def test_a_torch_without_what_it_wraps_ends_the_watch_alone(made, monkeypatch):
    live, reader, _, said = made()
    monkeypatch.setattr(live._others, "start", lambda: Kineto.no_such_method)
    with live:
        for _ in range(30):
            live.step()
    assert len(said) == 1 and "no_such_method" in said[0]
    assert not reader.read_


@pytest.fixture
def window():
    made = Window(with_stack=False)
    yield made
    if made._is_recording:
        made.close()


def test_each_step_is_a_range_and_so_is_the_wait(window, tmp_path):
    torch.ones(3).exp()
    window.start()
    assert is_profiled()
    for i in range(2):
        with window.waiting_for_data():
            x = torch.ones(4, 4)
        x @ x
        if i == 0:
            window.next_step()
    window.close()
    assert not is_profiled()
    window.write(tmp_path / "trace.json")
    found = Trace.open(tmp_path / "trace.json")
    profile = found.profile()
    assert profile.n_steps == 2
    names = {each.name: each.n for each in profile.kernels}
    assert names["aten::mm"] == 2
    assert "aten::exp" not in names, "before recording began"
    assert "peakward::data_load" in found.table.names


def test_one_that_never_recorded_is_let_go_of(window):
    with window.waiting_for_data():
        pass
    window.close()
    assert not is_profiled()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert is_profiled()


CPU = [ProfilerActivity.CPU]


@pytest.fixture
def asked():
    """When room was asked for: whether a profiler recorded already."""
    return []


@pytest.fixture
def others(asked):
    made = OtherProfilers(lambda: asked.append(torch._C._autograd._profiler_enabled()))
    made.start()
    yield made
    made.stop()


def test_one_that_warms_up_is_attached(others, asked):
    theirs = profile(activities=CPU)
    theirs.prepare_trace()
    assert others.any_attached()
    theirs.start_trace()
    theirs.stop_trace()
    assert not others.any_attached()
    assert asked == [False], "once, before it attached itself"


def test_one_of_autograds_own_too(others, asked):
    with Kineto():
        assert others.any_attached()
    assert not others.any_attached()
    assert asked == [False]


def test_one_that_was_there_before_is_found():
    theirs = profile(activities=CPU)
    theirs.prepare_trace()
    others = OtherProfilers(lambda: None)
    others.start()
    try:
        assert others.any_attached()
    finally:
        others.stop()
        theirs.start_trace()
        theirs.stop_trace()


def test_our_own_is_not_another(others, asked):
    with others.ours():
        mine = profile(activities=CPU)
        mine.prepare_trace()
    assert not others.any_attached()
    mine.start_trace()
    mine.stop_trace()
    assert asked == []


def test_afterwards_torch_is_as_before():
    before = (Kineto._prepare_trace, Kineto.__exit__)
    others = OtherProfilers(lambda: None)
    others.start()
    assert Kineto._prepare_trace is not before[0]
    others.stop()
    others.stop()
    assert (Kineto._prepare_trace, Kineto.__exit__) == before


def test_what_another_put_there_meanwhile_stays():
    def theirs(_profiler):
        pass

    real = Kineto._prepare_trace
    others = OtherProfilers(lambda: None)
    others.start()
    try:
        Kineto._prepare_trace = theirs
        others.stop()
        assert Kineto._prepare_trace is theirs
    finally:
        Kineto._prepare_trace = real


def optimizer():
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    return torch.optim.SGD([parameter], lr=0.1)


def test_those_of_the_first_that_steps_and_of_no_other():
    seen, first, second = [], optimizer(), optimizer()
    with OptimizerSteps(lambda: seen.append("step")):
        for _ in range(3):
            first.step()
            second.step()
    assert len(seen) == 3


def test_none_before_and_none_after():
    seen, only = [], optimizer()
    only.step()
    with OptimizerSteps(lambda: seen.append("step")):
        pass
    only.step()
    assert seen == []
