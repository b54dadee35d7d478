import io
import threading

from rich.console import Console

from peakward.report.progress import Progress


def console(*, terminal):
    # TERM=dumb, as some runners set it, makes even a forced terminal silent.
    return Console(
        file=io.StringIO(), width=100, force_terminal=terminal, _environ={"TERM": "xterm"}
    )


def test_silent_where_there_is_no_terminal():
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
