"""Progress of a long command: bars on a terminal's stderr, a line for each stage anywhere else."""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as Bars
from rich.progress import Task as Bar
from rich.text import Text

from peakward.report.format import format_duration

PATIENCE_S = 2.0
"""A command that ends within this time shows no bar."""


class TimeLeft(ProgressColumn):
    """The predicted remaining time. A bar over seconds shows the seconds left; a bar over cases extrapolates
    from the finished ones. It is empty where unknown and never below 0."""

    def render(self, task: Bar) -> Text:
        """The column's text for the bar."""
        return Text("" if (left_s := self.left_s(task)) is None else f"{_clock(left_s)} left")

    @staticmethod
    def left_s(task: Bar) -> float | None:
        """The remaining seconds; None where unknown."""
        if task.total is None or task.elapsed is None:
            return None
        if task.fields["of_seconds"]:
            return max(0.0, task.total - task.elapsed)
        if not task.completed:
            return None
        return max(0.0, task.elapsed * (task.total / task.completed - 1))


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Task:
    """One bar."""

    def __init__(self, bars: Bars, task_id: TaskID) -> None:
        self._bars = bars
        self._id = task_id

    def advance(self, n: float = 1, note: str = "") -> None:
        """Advance by `n` of the total. `note` names the next step."""
        self._bars.update(self._id, advance=n, note=note)


class Progress:
    """A context in which `track` adds bars. They appear `patience_s` after it was entered.

    A console that is no terminal shows no bars, but a line for each call of `stage`, which suits batch logs
    and notebooks. The caller chooses the total's unit.
    """

    def __init__(
        self,
        console: Console | None = None,
        *,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console if console is not None else Console(stderr=True)
        self._clock, self._began_s, self._said = clock, clock(), ""
        self._patience_s = patience_s
        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeLeft(),
            TextColumn("{task.fields[note]}", markup=False),
            console=self._console,
            transient=True,
        )
        # A timer starts the bars, because the first case alone may take minutes.
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Self:
        if self._console.is_interactive:
            self._timer = threading.Timer(self._patience_s, self._bars.start)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
            # A timer that has just fired must have started the bars before they are stopped.
            self._timer.join()
            self._bars.stop()

    def track(self, description: str, total: float | None, *, of_seconds: bool = False) -> Task:
        """Add a bar. `total` is None where it is not known. A bar of seconds follows the clock."""
        made = self._bars.add_task(description, total=total, note="", of_seconds=of_seconds)
        return Task(self._bars, made)

    def stage(self, text: str) -> None:
        """Print a line with the time for a stage, where no bar shows it."""
        if self._console.is_interactive or text == self._said:
            return
        self._said = text
        since = format_duration(round(self._clock() - self._began_s))
        self.say(f"{since:>12}  {text}")

    def say(self, line: str) -> None:
        """Print a line that stays above the bars."""
        # `py:ng:factory` names a module, and rich would make a picture of its `:ng:`.
        self._console.print(line, highlight=False, markup=False, emoji=False, soft_wrap=True)
