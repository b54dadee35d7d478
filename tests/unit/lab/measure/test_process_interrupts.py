"""Ctrl-C, once and twice."""

import os
import signal
import threading

import pytest

from peakward.lab.measure import process
from peakward.lab.measure.process import Interrupts


def press():
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def now(monkeypatch):
    """A clock to set."""
    time = [100.0]
    monkeypatch.setattr(process, "monotonic", lambda: time[0])
    return time


def test_once_is_noted_for_this_case_alone(now):
    noted = Interrupts()
    with noted:
        assert not noted.pending
        press()
        assert noted.pending
    noted.raise_if_stopping()
    with noted:
        assert not noted.pending


def test_twice_within_two_seconds_stops_the_run_once(now):
    noted = Interrupts()
    with noted:
        press()
        now[0] += 1.9
        press()
    with pytest.raises(KeyboardInterrupt):
        noted.raise_if_stopping()
    noted.raise_if_stopping()


def test_a_late_third_takes_nothing_back(now):
    """A worker may take ten seconds to end, which is when people press again."""
    noted = Interrupts()
    with noted:
        for pause_s in (0.0, 1.0, 5.0):
            now[0] += pause_s
            press()
    with pytest.raises(KeyboardInterrupt):
        noted.raise_if_stopping()


def test_the_second_may_come_in_the_next_case(now):
    noted = Interrupts()
    with noted:
        press()
    noted.raise_if_stopping()
    now[0] += 1.0
    with noted:
        press()
    with pytest.raises(KeyboardInterrupt):
        noted.raise_if_stopping()


def test_two_far_apart_are_two_cases(now):
    noted = Interrupts()
    with noted:
        press()
        now[0] += 2.1
        press()
    noted.raise_if_stopping()


def test_outside_it_is_raised_as_ever():
    before = signal.getsignal(signal.SIGINT)
    with Interrupts():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_in_another_thread_it_does_nothing():
    before, inside = signal.getsignal(signal.SIGINT), []

    def run():
        with Interrupts():
            inside.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert inside == [before]


def test_what_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts() as noted:
            press()
        assert not noted.pending
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
