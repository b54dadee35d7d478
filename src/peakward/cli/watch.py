"""Shows on stderr how far a long command is: a bar on a terminal, a line a stage elsewhere."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from peakward.api.session import Observer
from peakward.records.measurement import Measurement
from peakward.report.cases import label
from peakward.report.format import format_cell
from peakward.report.progress import Progress

if TYPE_CHECKING:
    from peakward.lab.measure.messages import Event

NOTE_WIDTH = 34
"""Characters beside a bar: on 80 columns the bar then keeps nine."""

_ENDED_BY_USER = "Ctrl-C ended this case; twice within two seconds, it ends the command."


class CaseWatch(Observer):
    """Counts cases against a plan: those named in `upcoming`, or `total` of them."""

    def __init__(
        self, progress: Progress, what: str, upcoming: Sequence[str], total: int | None = None
    ) -> None:
        self._progress, self._total, self._n_done = progress, total or len(upcoming), 0
        self._task = progress.track(what, self._total)
        self._upcoming = iter(upcoming)
        self._current = next(self._upcoming, "")

    def on_event(self, event: "Event") -> None:
        self._task.advance(0, note=_note(self._current, event.stage))

    def on_stage(self, doing: str) -> None:
        self._progress.stage(doing)
        self._task.advance(0, note=_note(doing))

    def on_done(self, measurement: Measurement) -> None:
        self._n_done += 1
        self._progress.stage(f"{self._n_done}/{self._total}  {_outcome(measurement)}")
        if measurement.interrupted:
            self._progress.say(_ENDED_BY_USER)
        self._current = next(self._upcoming, "")
        self._task.advance(1, note=_note(self._current))


class BudgetWatch(Observer):
    """Counts seconds against a budget, which is the most that is left; None where it is not known how
    many."""

    def __init__(
        self,
        progress: Progress,
        what: str,
        budget_s: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._progress, self._clock = progress, clock
        self._task = progress.track(what, budget_s, of_seconds=True)
        self._last_s = clock()
        self._doing = ""

    def on_event(self, event: "Event") -> None:
        if not self._doing:
            self._progress.stage(event.stage)
        self._tick(_note(self._doing, event.stage))

    def on_stage(self, doing: str) -> None:
        """The investigation goes on to something else."""
        self._doing = doing
        self._progress.stage(doing)
        self._tick(_note(doing))

    def say(self, line: str) -> None:
        """A line that stays, above the bar."""
        self._progress.say(line)

    def _tick(self, note: str) -> None:
        now_s = self._clock()
        self._task.advance(now_s - self._last_s, note=note)
        self._last_s = now_s


@contextlib.contextmanager
def cases(what: str, upcoming: Sequence[str], total: int | None = None) -> Iterator[CaseWatch]:
    """A bar over cases: those named in `upcoming`, or `total` of them."""
    with Progress() as progress:
        yield CaseWatch(progress, what, upcoming, total)


@contextlib.contextmanager
def budget(what: str, budget_s: float | None) -> Iterator[BudgetWatch]:
    """A bar over seconds; None where it is not known how many."""
    with Progress() as progress:
        yield BudgetWatch(progress, what, budget_s)


def _outcome(measurement: Measurement) -> str:
    summary = measurement.summary
    came = measurement.told if summary is None else format_cell(summary.median_s.estimate, "s")
    return f"{label(measurement.case)}: {came}"


def _note(doing: str, stage: str = "") -> str:
    """Returns what goes on and how far it is, short enough to leave room for the bar."""
    room = NOTE_WIDTH - len(stage) - len(": ")
    short = doing if len(doing) <= room else doing[: room - 1] + "…"
    return ": ".join(part for part in (short, stage) if part)
