"""One request, up to its answer or its end, with a process that plays its part."""

from time import monotonic

import pytest

from peakward.lab.measure import process
from peakward.lab.measure.messages import (
    Calibrated,
    CalibrateRequest,
    Event,
    Failed,
    Ready,
    Released,
)
from peakward.lab.measure.process import Conversation, Garbled, Interrupts, WorkerDied

ANSWER = Calibrated(matmul=(), copy_bytes_per_s=1.0, copy_size_bytes=1)
RELEASED = Released(clean=True, held_bytes=0)


BUILDING = Event(stage="building")


class Clock:
    """Time that passes where a player says so."""

    now_s = 0.0

    def after(self, seconds):
        def nothing_for_so_long():
            self.now_s += seconds

        return nothing_for_so_long


class Player:
    """A process that gives these replies, None for "nothing yet", and dies where they end."""

    def __init__(self, *replies, ready=True):
        self.replies, self.sent, self.killed = list(replies), [], False
        self.worker_pid = 7 if ready else None

    def send(self, request):
        self.sent.append(request)

    def receive(self, timeout_s):
        if not self.replies:
            raise WorkerDied
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply() if callable(reply) else reply

    def kill(self):
        self.killed = True

    def bury(self):
        return -11

    def tail(self):
        return ""


def talk(player, interrupts=None, timeout_s=60.0):
    told = []
    held = Conversation(player, interrupts or Interrupts(), told.append)
    request = CalibrateRequest(device_type="cpu")
    answer = held.ask(request, timeout_s)
    assert player.sent == [request]
    return answer, held, told


def test_events_are_told_on_the_way_to_the_answer():
    events = [Event(stage="building"), Event(stage="timing", done=3, turn=0)]
    player = Player(Ready(pid=7), events[0], None, events[1], None, ANSWER, RELEASED)
    answer, held, told = talk(player)
    assert answer == ANSWER
    assert told == events
    assert held.last == events[1]
    assert held.begun_s <= monotonic()
    assert held.released() == RELEASED
    assert not player.killed


def test_news_of_an_earlier_request_is_not_an_answer():
    answer, held, _ = talk(Player(RELEASED, Ready(pid=7), ANSWER))
    assert answer == ANSWER
    assert held.begun_s is None


@pytest.mark.parametrize(
    ("event", "doing"),
    [
        (None, "starting"),
        (Event(stage="building"), "building"),
        (Event(stage="warming up", done=1), "warming up, 1 step done"),
        (Event(stage="timing", done=9, turn=0), "timing case 1, 9 steps done"),
    ],
)
def test_a_death_is_told_with_what_was_being_done(event, doing):
    answer, _, _ = talk(Player(*([] if event is None else [event])))
    ended_by = "outside" if event is None else "case"
    reason = f"killed by SIGSEGV while {doing}"
    assert answer == Failed(status="crashed", reason=reason, ended_by=ended_by)


def test_time_that_is_up_ends_the_process():
    player = Player(None)
    answer, _, _ = talk(player, timeout_s=0.0)
    reason = "not done after 0 s, while starting"
    assert answer == Failed(status="timeout", reason=reason, ended_by="outside")
    assert player.killed


@pytest.mark.parametrize(("event", "ended_by"), [(None, "outside"), (BUILDING, "case")])
def test_junk_in_the_pipe_ends_the_process(event, ended_by):
    player = Player(*([] if event is None else [event]), Garbled())
    answer, _, _ = talk(player)
    doing = "starting" if event is None else "building"
    reason = f"wrote what is no answer into the pipe of its answers while {doing}"
    assert answer == Failed(status="crashed", reason=reason, ended_by=ended_by)
    assert player.killed


def test_a_start_takes_none_of_a_request_s_time(monkeypatch):
    """The clock stands still but where the player moves it: a start of 100 s, then a request of 5."""
    clock = Clock()
    monkeypatch.setattr(process, "monotonic", lambda: clock.now_s)
    assert (
        talk(Player(clock.after(100.0), Ready(pid=7), ANSWER, ready=False), timeout_s=5.0)[0]
        == ANSWER
    )
    late = Player(Ready(pid=7), BUILDING, clock.after(6.0), ready=False)
    reason = "not done after 5 s, while building"
    assert talk(late, timeout_s=5.0)[0] == Failed(status="timeout", reason=reason)


def test_a_worker_that_never_starts_is_no_case_s_doing(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(process, "monotonic", lambda: clock.now_s)
    player = Player(clock.after(process.START_TIMEOUT_S), ready=False)
    reason = f"not done after {process.START_TIMEOUT_S:g} s, while starting"
    answer, _, _ = talk(player, timeout_s=5.0)
    assert answer == Failed(status="timeout", reason=reason, ended_by="outside")


def test_an_interrupt_ends_the_process():
    interrupts, player = Interrupts(), Player(None, None)
    interrupts.pending = True
    answer, _, _ = talk(player, interrupts)
    reason = "interrupted by Ctrl-C while starting"
    assert answer == Failed(status="crashed", reason=reason, ended_by="user")
    assert player.killed


def test_a_worker_that_never_says_what_it_left_has_no_word_on_it(monkeypatch):
    assert talk(Player(ANSWER))[1].released() is None
    monkeypatch.setattr(process, "RELEASE_TIMEOUT_S", 0.0)
    assert talk(Player(ANSWER, None, None))[1].released() is None
    assert talk(Player(ANSWER, Garbled()))[1].released() is None
