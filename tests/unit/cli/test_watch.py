"""What a long command shows: bars where somebody watches, a line a stage where a log is written."""

import io

from rich.console import Console

from peakward.cli import watch
from peakward.cli.watch import BudgetWatch, CaseWatch
from peakward.lab.measure.messages import Event
from peakward.report.progress import Progress


class Shown:
    """Records what a bar, and the lines beside it, were told."""

    def __init__(self) -> None:
        self.told: list[tuple[float, str]] = []
        self.lines: list[str] = []

    def track(self, what, total, *, of_seconds=False):
        return self

    def advance(self, n=1.0, note=""):
        self.told.append((n, note))

    def stage(self, text):
        self.lines.append(text)


def test_cases_are_counted_and_the_next_one_named(make_measurement):
    shown = Shown()
    watching = CaseWatch(shown, "bench", ["first", "second"])
    watching.on_event(Event(stage="timing", done=3))
    watching.on_done(make_measurement())
    watching.on_event(Event(stage="building"))
    watching.on_done(make_measurement())
    watching.on_done(make_measurement())
    assert shown.told == [
        (0, "first: timing"),
        (1, "second"),
        (0, "second: building"),
        (1, ""),
        (1, ""),
    ]
    assert [line[:5] for line in shown.lines] == ["1/2  ", "2/2  ", "3/2  "]


def test_a_budget_is_counted_in_seconds():
    shown, now = Shown(), iter([10.0, 12.5, 13.0])
    watching = BudgetWatch(shown, "run", 60.0, clock=lambda: next(now))
    watching.on_stage("screening sdpa")
    watching.on_event(Event(stage="timing"))
    assert shown.told == [(2.5, "screening sdpa"), (0.5, "screening sdpa: timing")]
    assert shown.lines == ["screening sdpa"]


def test_what_has_no_stages_of_its_own_shows_the_worker_s():
    shown = Shown()
    BudgetWatch(shown, "calibrate", None, clock=lambda: 0.0).on_event(Event(stage="calibrating"))
    assert shown.lines == ["calibrating"]


def test_what_is_expected_is_said_to_a_log_too():
    written = io.StringIO()
    BudgetWatch(Progress(Console(file=written)), "run", 60.0).say("at most 5 [k] tok/s")
    assert written.getvalue() == "at most 5 [k] tok/s\n"


def test_a_note_leaves_the_bar_its_place():
    shown = Shown()
    CaseWatch(shown, "bench", ["x" * 100]).on_event(Event(stage="warming up"))
    ((_, note),) = shown.told
    assert len(note) == watch.NOTE_WIDTH
    assert note.endswith("…: warming up")


def test_without_a_terminal_each_stage_is_a_line(capfd, make_measurement):
    with watch.cases("bench", ["one"]) as watching:
        watching.on_event(Event(stage="timing"))
        watching.on_done(make_measurement())
    with watch.budget("run", 10.0) as watching:
        watching.on_stage("measuring")
    out, err = capfd.readouterr()
    assert out == ""
    case, stage = err.splitlines()
    assert "1/1  " in case
    assert stage.endswith("s  measuring")


def test_a_case_that_ctrl_c_ended_says_how_to_end_the_command(capfd, make_measurement):
    with watch.cases("measuring", ["a", "b"]) as watching:
        watching.on_done(make_measurement(status="crashed", ended_by="case"))
        assert "Ctrl-C" not in capfd.readouterr().err
        watching.on_done(make_measurement(status="crashed", ended_by="user"))
    assert "twice within two seconds, it ends the command" in capfd.readouterr().err
