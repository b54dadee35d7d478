"""A loop under watch: findings about it while it runs, and afterwards."""

import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from peakward.hardware.devices import device
from peakward.records.errors import PeakwardError
from peakward.records.finding import Diagnosis, Finding
from peakward.records.loop import LoopTimes, WatchedWindow
from peakward.records.profile import Profile
from peakward.tune.reading import WindowReader

if TYPE_CHECKING:
    from peakward.lab.measure.live.loop import LiveLoop, OptimizerSteps

T = TypeVar("T")
LEAST_HEARD = 2
NO_STEPS = (
    "no steps were seen: call watch.step() at the end of each (`with pw.watch() as watch:`), for no "
    "optimizer of torch stepped twice"
)
MAX_WINDOW_STEPS = 20
EXIT_WAIT_S = 60.0
"""For the last window, where the loop ended by itself; where it raised, nothing is waited for."""


class Watch:
    """Inside its `with` block call `step()` at the end of each step; where nothing does, a step ends with
    that of the loop's optimizer. Use it for one loop.

    Every `every` steps a window of `n_steps` is profiled, read in another process and examined. Where
    that finds anything, `on_findings` is called with the `Diagnosis`, in a thread of the watch's own.

    Raises:
        PeakwardError: a window as long as what lies between two.
    """

    def __init__(
        self,
        *,
        every: int,
        n_steps: int,
        with_stack: bool,
        on_findings: Callable[[Diagnosis], object],
    ) -> None:
        if not 1 <= n_steps <= MAX_WINDOW_STEPS:
            raise PeakwardError(
                f"expected a window of 1 to {MAX_WINDOW_STEPS} steps, got n_steps={n_steps}"
            )
        if every <= n_steps + 1:
            raise PeakwardError(
                f"expected windows of {n_steps} steps at least {n_steps + 2} apart, got every={every}: "
                "steps between windows are what is timed"
            )
        self._every, self._n_steps, self._with_stack = every, n_steps, with_stack
        self._on_findings = on_findings
        self._reader = WindowReader(on_reading=self._heard, on_failure=self._warn)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._loop: LiveLoop | None = None
        self._reading: WatchedWindow | None = None
        self._told: set[str] = set()
        self._has_failed = False
        self._optimizers: OptimizerSteps | None = None
        self._is_marked = False
        """Whether the loop calls `step()`."""
        self._n_heard = 0
        """Steps of its optimizer, while it does not."""

    def __enter__(self) -> Self:
        if self._loop is not None:
            raise PeakwardError("expected a watch of its own for each loop, got one used before")
        from peakward.lab.measure.live.loop import LiveLoop, OptimizerSteps

        self._folder = tempfile.TemporaryDirectory(
            prefix="peakward-watch-", ignore_cleanup_errors=True
        )
        self._loop = LiveLoop(
            every=self._every,
            n_steps=self._n_steps,
            with_stack=self._with_stack,
            folder=Path(self._folder.name),
            reader=self._reader,
            say=_say,
        )
        self._loop.__enter__()
        self._optimizers = OptimizerSteps(self._optimizer_stepped)
        self._optimizers.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        assert self._loop is not None and self._folder is not None
        assert self._optimizers is not None
        self._optimizers.__exit__()
        self._loop.__exit__()
        if kind is None and not self._is_marked and self._n_heard < LEAST_HEARD:
            _say(NO_STEPS)
        try:
            if not self._reader.finish(EXIT_WAIT_S if kind is None else 0.0) and kind is None:
                _say(f"the last window was not read within {EXIT_WAIT_S:.0f} s, and is left out")
        finally:
            self._folder.cleanup()
        if kind is None:
            self._tell_what_is_new()

    def step(self) -> None:
        """A step of the loop has ended."""
        if self._loop is None:
            raise PeakwardError("expected a watch inside its with block, got step() before it")
        if not self._is_marked and self._optimizers is not None:
            self._is_marked = True
            self._optimizers.__exit__()
        self._loop.step()

    def _optimizer_stepped(self) -> None:
        """The first says nothing: `step()` may follow it."""
        self._n_heard += 1
        if self._loop is not None and self._n_heard >= LEAST_HEARD:
            self._loop.step()

    def batches(self, loader: Iterable[T]) -> Iterator[T]:
        """The loader's batches, with the wait for each timed: `for batch in watch.batches(loader):`."""
        if self._loop is None:
            raise PeakwardError("expected a watch inside its with block, got batches() before it")
        return self._loop.batches(loader)

    @property
    def times(self) -> LoopTimes:
        """The times of the loop's unprofiled steps until now."""
        if self._loop is None:
            raise PeakwardError(
                "expected a watch inside or after its with block, got times before it"
            )
        return self._loop.times()

    @property
    def profile(self) -> Profile | None:
        """The last window that was read; None before the first."""
        return None if self._reading is None else self._reading.profile

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of `diagnosis()`."""
        return self.diagnosis().findings

    def diagnosis(self) -> Diagnosis:
        """Examines the last window that was read and all steps until now."""
        from peakward.diagnose.diagnosis_input import DiagnosisInput
        from peakward.diagnose.examine import examine
        from peakward.prediction.planning.site import site

        read = self._reading
        key = None if read is None else read.device
        return examine(
            DiagnosisInput(
                subject="the watched loop",
                profile=self.profile,
                loop=self.times,
                site=None if key is None else site(device(key)),
            )
        )

    def _heard(self, reading: WatchedWindow) -> None:
        """In the reader's thread."""
        self._reading = reading
        if reading.diagnosis.findings:
            self._tell(reading.diagnosis)

    def _tell_what_is_new(self) -> None:
        """After the loop: what its last steps showed, or all where it was too short for a window."""
        try:
            last = self.diagnosis()
        except Exception as error:  # noqa: BLE001  the loop is done, and its results are not ours to lose
            self._warn(f"{type(error).__name__}: {error}")
            return
        if {each.code for each in last.findings} - self._told:
            self._tell(last)

    def _tell(self, found: Diagnosis) -> None:
        self._told |= {each.code for each in found.findings}
        try:
            self._on_findings(found)
        except Exception as error:  # noqa: BLE001  of the caller's function, in the loop's shadow
            self._warn(f"on_findings raised {type(error).__name__}: {error}")

    def _warn(self, reason: str) -> None:
        """Once."""
        if not self._has_failed:
            self._has_failed = True
            _say(f"{reason}; your loop goes on")


def _say(line: str) -> None:
    print(f"peakward watch: {line}", file=sys.stderr, flush=True)
