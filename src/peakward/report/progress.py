"""How far a long command has come: bars on a terminal's stderr, nothing anywhere else."""

import threading
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars

PATIENCE_S = 2.0
"""A command that ends sooner never shows a bar."""


class Task:
    """One bar."""

    def __init__(self, bars: Bars, task_id: TaskID) -> None:
        self._bars = bars
        self._id = task_id

    def advance(self, n: float = 1, note: str = "") -> None:
        """`n` more of the total are done; `note` says what comes next."""
        self._bars.update(self._id, advance=n, note=note)


class Progress:
    """A context within which `track` gives bars, shown from `patience_s` after it was entered.

    On a console that is no terminal nothing is ever written. The total's unit is the caller's.
    """

    def __init__(self, console: Console | None = None, *, patience_s: float = PATIENCE_S) -> None:
        self._console = console if console is not None else Console(stderr=True)
        self._patience_s = patience_s
        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=self._console,
            transient=True,
        )
        # A timer, since the first case alone may take minutes and nobody would start the bars.
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
            # One that had just fired must have started the bars before they are stopped.
            self._timer.join()
            self._bars.stop()

    def track(self, description: str, total: float | None) -> Task:
        """A new bar; None where the total is not known."""
        return Task(self._bars, self._bars.add_task(description, total=total, note=""))
