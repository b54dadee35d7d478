"""One request, up to its answer or its end, with a process that plays its part."""

from time import monotonic

import pytest

from peakward.lab.measure import conversation
from peakward.lab.measure.conversation import Conversation
from peakward.lab.measure.interrupts import Interrupts
from peakward.lab.measure.messages import (
    Calibrated,
    CalibrateRequest,
    Event,
    Failed,
    Ready,
    Released,
)
from peakward.lab.measure.process import WorkerDied

ANSWER = Calibrated(matmul=(), copy_bytes_per_s=1.0, copy_size_bytes=1)
RELEASED = Released(clean=True, held_bytes=0)


class Player:
    """A process that gives these replies, None for "nothing yet", and dies where they end."""

    def __init__(self, *replies):
        self.replies, self.sent, self.killed = list(replies), [], False

    def send(self, request):
        self.sent.append(request)

    def receive(self, timeout_s):
        if not self.replies:
            raise WorkerDied
        return self.replies.pop(0)

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
    answer = held.ask(request, monotonic() + timeout_s, timeout_s)
    assert player.sent == [request]
    return answer, held, told


def test_events_are_told_on_the_way_to_the_answer():
    events = [Event(stage="building"), Event(stage="timing", done=3, turn=0)]
    player = Player(Ready(), events[0], None, events[1], None, ANSWER, RELEASED)
    answer, held, told = talk(player)
    assert answer == ANSWER
    assert told == events
    assert held.last == events[1]
    assert held.begun_s <= monotonic()
    assert held.released() == RELEASED
    assert not player.killed


def test_news_of_an_earlier_request_is_not_an_answer():
    answer, held, _ = talk(Player(RELEASED, Ready(), ANSWER))
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
    assert answer == Failed(status="crashed", reason=f"killed by SIGSEGV while {doing}")


def test_time_that_is_up_ends_the_process():
    player = Player(None)
    answer, _, _ = talk(player, timeout_s=0.0)
    assert answer == Failed(status="timeout", reason="not done after 0 s, while starting")
    assert player.killed


def test_an_interrupt_ends_the_process():
    interrupts, player = Interrupts(), Player(None, None)
    interrupts.pending = True
    answer, _, _ = talk(player, interrupts)
    assert answer == Failed(status="crashed", reason="interrupted by Ctrl-C while starting")
    assert player.killed


def test_a_worker_that_never_says_what_it_left_has_no_word_on_it(monkeypatch):
    assert talk(Player(ANSWER))[1].released() is None
    monkeypatch.setattr(conversation, "RELEASE_TIMEOUT_S", 0.0)
    assert talk(Player(ANSWER, None, None))[1].released() is None
