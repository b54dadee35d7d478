"""What a long command shows while it runs: a bar, and lines above it, on a terminal's stderr."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from peakward.records.measurement import Measurement
from peakward.report.progress import Progress, Task

if TYPE_CHECKING:
    from peakward.lab.measure.messages import Event

NOTE_WIDTH = 34
"""Characters beside a bar: on 80 columns the bar then keeps nine."""


class Watch:
    """Hears what the lab does. The base keeps quiet."""

    def on_event(self, event: "Event") -> None:
        """The worker entered a stage, or came further in one."""

    def on_done(self, _measurement: Measurement) -> None:
        """A case has been measured, or found in the store."""


class CaseWatch(Watch):
    """Counts cases against a plan."""

    def __init__(self, task: Task, upcoming: Sequence[str]) -> None:
        self._task = task
        self._upcoming = iter(upcoming)
        self._current = next(self._upcoming, "")

    def on_event(self, event: "Event") -> None:
        self._task.advance(0, note=_note(self._current, event.stage))

    def on_done(self, _measurement: Measurement) -> None:
        self._current = next(self._upcoming, "")
        self._task.advance(1, note=_note(self._current))


class BudgetWatch(Watch):
    """Counts seconds against a budget, which is the most that is left."""

    def __init__(
        self, task: Task, console: Console, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._task, self._console, self._clock = task, console, clock
        self._last_s = clock()
        self._doing = ""

    def on_event(self, event: "Event") -> None:
        self._tick(_note(self._doing, event.stage))

    def on_stage(self, doing: str) -> None:
        """The investigation goes on to something else."""
        self._doing = doing
        self._tick(_note(doing))

    def say(self, line: str) -> None:
        """A line that stays, above the bar; only where someone watches."""
        if self._console.is_terminal:
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _tick(self, note: str) -> None:
        now_s = self._clock()
        self._task.advance(now_s - self._last_s, note=note)
        self._last_s = now_s


@contextlib.contextmanager
def cases(what: str, upcoming: Sequence[str], total: int | None = None) -> Iterator[CaseWatch]:
    """A bar over cases: those named in `upcoming`, or `total` of them."""
    with Progress() as progress:
        task = progress.track(what, len(upcoming) if total is None else total)
        yield CaseWatch(task, upcoming)


@contextlib.contextmanager
def budget(what: str, budget_s: float | None) -> Iterator[BudgetWatch]:
    """A bar over seconds; None where it is not known how many."""
    console = Console(stderr=True)
    with Progress(console) as progress:
        yield BudgetWatch(progress.track(what, budget_s), console)


def _note(doing: str, stage: str = "") -> str:
    """What goes on and how far it is, short enough to leave the bar its place."""
    room = NOTE_WIDTH - len(stage) - len(": ")
    short = doing if len(doing) <= room else doing[: room - 1] + "…"
    return ": ".join(part for part in (short, stage) if part)
