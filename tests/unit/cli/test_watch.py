"""What a long command shows, and that it keeps quiet where nobody watches."""

import io

import pytest
from rich.console import Console

from peakward.cli import watch
from peakward.cli.watch import BudgetWatch, CaseWatch
from peakward.lab.measure.messages import Event


class Task:
    """Records what a bar was told."""

    def __init__(self) -> None:
        self.told: list[tuple[float, str]] = []

    def advance(self, n=1.0, note=""):
        self.told.append((n, note))


def test_cases_are_counted_and_the_next_one_named(make_measurement):
    task = Task()
    watching = CaseWatch(task, ["first", "second"])
    watching.on_event(Event(stage="timing", done=3))
    watching.on_done(make_measurement())
    watching.on_event(Event(stage="building"))
    watching.on_done(make_measurement())
    watching.on_done(make_measurement())
    assert task.told == [
        (0, "first: timing"),
        (1, "second"),
        (0, "second: building"),
        (1, ""),
        (1, ""),
    ]


def test_a_budget_is_counted_in_seconds():
    task, now = Task(), iter([10.0, 12.5, 13.0])
    watching = BudgetWatch(task, Console(file=io.StringIO()), clock=lambda: next(now))
    watching.on_stage("screening sdpa")
    watching.on_event(Event(stage="timing"))
    assert task.told == [(2.5, "screening sdpa"), (0.5, "screening sdpa: timing")]


@pytest.mark.parametrize("terminal", [True, False])
def test_lines_are_for_those_who_watch(terminal):
    written = io.StringIO()
    console = Console(file=written, force_terminal=terminal)
    BudgetWatch(Task(), console).say("at most 5 [k] tok/s")
    assert written.getvalue() == ("at most 5 [k] tok/s\n" if terminal else "")


def test_a_note_leaves_the_bar_its_place():
    task = Task()
    CaseWatch(task, ["x" * 100]).on_event(Event(stage="warming up"))
    ((_, note),) = task.told
    assert len(note) == watch.NOTE_WIDTH
    assert note.endswith("…: warming up")


def test_without_a_terminal_nothing_is_written(capfd, make_measurement):
    with watch.cases("bench", ["one"]) as watching:
        watching.on_event(Event(stage="timing"))
        watching.on_done(make_measurement())
    with watch.budget("run", 10.0) as watching:
        watching.on_stage("measuring")
    assert capfd.readouterr() == ("", "")
