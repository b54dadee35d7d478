import io
import threading
from types import SimpleNamespace

import pytest
from rich.console import Console

from peakward.report.progress import Progress, TimeLeft


def console(*, terminal):
    # TERM=dumb, as some runners set it, makes even a forced terminal silent.
    return Console(
        file=io.StringIO(), width=100, force_terminal=terminal, _environ={"TERM": "xterm"}
    )


def test_no_bar_where_there_is_no_terminal():
    to = console(terminal=False)
    with Progress(to, patience_s=0.0) as progress:
        progress.track("cases", 3).advance(note="small")
    assert to.file.getvalue() == ""


def test_silent_until_its_patience_ends():
    to = console(terminal=True)
    with Progress(to, patience_s=600.0) as progress:
        progress.track("cases", 3).advance()
    assert to.file.getvalue() == ""


def test_shows_count_and_note_then_clears_itself():
    to = console(terminal=True)
    with Progress(to, patience_s=0.0) as progress:
        task = progress.track("cases", 3)
        progress._timer.join()  # the bars are up
        task.advance(2, note="[small] 4 × 512")
        progress._bars.refresh()
    shown = to.file.getvalue()
    assert "2/3" in shown
    assert "[small] 4 × 512" in shown
    assert shown.endswith("\x1b[2K")


def test_leaves_no_thread_behind():
    before = set(threading.enumerate())
    with Progress(console(terminal=True), patience_s=0.0):
        pass
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=60)
        assert not thread.is_alive()


def bar(*, total, completed=0.0, elapsed=0.0, of_seconds=True):
    return SimpleNamespace(
        total=total, completed=completed, elapsed=elapsed, fields={"of_seconds": of_seconds}
    )


@pytest.mark.parametrize(
    ("task", "text"),
    [
        (bar(total=100, elapsed=30.0), "1:10 left"),
        (bar(total=100, elapsed=308.0), "0:00 left"),  # never below 0
        (bar(total=100, completed=99, elapsed=0.0), "1:40 left"),  # by the clock, not by events
        (bar(total=24, of_seconds=False, elapsed=120.0), ""),  # nobody can say yet
        (bar(total=24, completed=6, of_seconds=False, elapsed=120.0), "6:00 left"),
        (bar(total=24, completed=25, of_seconds=False, elapsed=120.0), "0:00 left"),
        (bar(total=2, completed=1, of_seconds=False, elapsed=7300.0), "2:01:40 left"),
        (bar(total=None, elapsed=5.0), ""),
        (bar(total=9, elapsed=None), ""),
    ],
)
def test_the_time_left_is_never_negative_nor_a_row_of_dashes(task, text):
    assert TimeLeft().render(task).plain == text


def test_off_a_terminal_each_stage_is_a_line_with_its_time():
    to, now = console(terminal=False), iter([10.0, 10.2, 75.0])
    with Progress(to, clock=lambda: next(now)) as progress:
        progress.stage("measuring the baseline")
        progress.stage("measuring the baseline")
        progress.stage("screening sdpa on bf16")
    assert to.file.getvalue().splitlines() == [
        "         0 s  measuring the baseline",
        " 1 min 05 s  screening sdpa on bf16".rjust(36),
    ]


@pytest.mark.parametrize("terminal", [False, True])
def test_a_name_between_colons_is_no_picture(terminal):
    to = console(terminal=terminal)
    with Progress(to, patience_s=0.0) as progress:
        task = progress.track("py:ng:factory", 3)
        progress.stage("profiling py:ng:factory")
        progress.say("py:ng:factory done")
        if terminal:
            progress._timer.join()  # the bars are up
            task.advance(1, note="py:ng:factory")
            progress._bars.refresh()
    said = to.file.getvalue()
    assert "py:ng:factory" in said
    assert said.count(":ng:") == said.count("factory")


def test_on_a_terminal_the_bar_shows_the_stage():
    to = console(terminal=True)
    with Progress(to, patience_s=600.0) as progress:
        progress.stage("measuring the baseline")
    assert to.file.getvalue() == ""
