"""Times the steps of a user's own loop where they run, and profiles a window of them from time to time.

A step that is not profiled costs two readings of the clock and some arithmetic, and no wait.

torch lets a second profiler replace the first, also one that its schedule only warms up. Whichever then
stops or writes its trace ends the process with a segmentation fault (torch 2.13). torch does not tell
that a profiler warms up. The one method through which every profiler goes is therefore wrapped while a
watch is on, and a window makes room before another profiler attaches itself.
"""

import gc
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol, Self, TypeVar

import torch
from torch._C._autograd import _profiler_enabled
from torch.autograd.profiler import profile as Kineto
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity
from torch.profiler import profile as Profiler

from peakward.lab.levers.ranges import opened
from peakward.lab.measure.live.pulse import Collector, Pulse
from peakward.records.loop import LoopTimes

T = TypeVar("T")
END: Any = object()
OTHERS = "another profiler of torch is active: no window is taken while it is"
NESTED = "another watch of this process is active: this one stays quiet"
_WATCHING = threading.Lock()
"""torch has one profiler a process, so there is at most one watch."""


class Reader(Protocol):
    """The receiver of the windows."""

    def is_ready(self) -> bool:
        """Whether to take another window: not while it reads the last one, nor after it failed."""

    def read(self, trace: Path, times: LoopTimes) -> None:
        """Reads this window, without keeping the loop waiting."""


class Window:
    """A window that attaches in one step, since that takes up to seconds the first time, and records
    from the next.

    The window waits for a GPU where recording begins and where it ends, so that it holds exactly the
    work that it launched.
    """

    def __init__(self, *, with_stack: bool) -> None:
        self._on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
        gpu = [ProfilerActivity.CUDA] if self._on_gpu else []
        self._profiler = Profiler(
            activities=[ProfilerActivity.CPU, *gpu], record_shapes=True, with_stack=with_stack
        )
        self._step = ExitStack()
        self._is_recording = False
        self._profiler.prepare_trace()

    def start(self) -> None:
        """Records from the step that begins now."""
        if self._on_gpu:
            torch.cuda.synchronize()
        self._profiler.start_trace()
        self._is_recording = True
        self._step.enter_context(opened("step"))

    def next_step(self) -> None:
        """Notes that one step has ended and another begins."""
        self._step.close()
        self._step.enter_context(opened("step"))

    def waiting_for_data(self) -> AbstractContextManager[object]:
        """The range in which the loop draws a batch."""
        return opened("data_load") if self._is_recording else nullcontext()

    def close(self) -> None:
        """Detaches, from whatever state."""
        if not self._is_recording:
            # A prepared profiler can only be ended after it has recorded.
            self._profiler.start_trace()
        self._is_recording = False
        try:
            self._step.close()
        finally:
            self._profiler.stop_trace()

    def write(self, path: Path) -> None:
        """Writes the trace of a closed window, not compressed: that would cost the loop more than disk."""
        self._profiler.export_chrome_trace(str(path))


class LiveLoop:
    """Watches a loop: inside its `with` block `step` is called at the end of each step.

    An error in here never reaches the loop: it is reported once, and later ones are not. Errors of the
    loop itself pass.
    """

    def __init__(
        self,
        *,
        every: int,
        n_steps: int,
        with_stack: bool,
        folder: Path,
        reader: Reader,
        say: Callable[[str], None],
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._every, self._n_window_steps, self._with_stack = every, n_steps, with_stack
        self._folder, self._reader, self._say, self._clock = folder, reader, say, clock
        self._pulse, self._collector = Pulse(), Collector(clock)
        self._others = OtherProfilers(self._make_room)
        self._window: Window | None = None
        self._n_recorded: int | None = None
        self._n, self._due = 0, every
        self._n_windows, self._windows_s = 0, 0.0
        self._began_s = self._waited_s = 0.0
        self._is_on = self._draws = self._has_warned = False

    def __enter__(self) -> Self:
        if not _WATCHING.acquire(blocking=False):
            self._say(NESTED)
            return self
        self._is_on = True
        try:
            self._others.start()
            self._collector.start()
        except Exception as error:  # noqa: BLE001  the loop goes on without
            self._fail(error)
        self._began_s = self._clock()
        return self

    def __exit__(self, *_error: object) -> None:
        self._end()

    def step(self) -> None:
        """Notes that a step has ended."""
        now_s = self._clock()
        if not self._is_on:
            return
        in_window = self._window is not None
        try:
            self._ended(now_s - self._began_s)
        except Exception as error:  # noqa: BLE001  whatever it is, the loop goes on
            self._fail(error)
        self._began_s = self._clock()
        if in_window or self._window is not None:
            self._windows_s += self._began_s - now_s

    def batches(self, loader: Iterable[T]) -> Iterator[T]:
        """Yields the loader's batches and times the wait for each, with two more readings of the clock."""
        self._draws = True
        source: Iterator[T] | None = None
        while True:
            began_s, collected_s = self._clock(), self._collector.total_s()
            with self._drawing():
                source = iter(loader) if source is None else source
                batch = next(source, END)
            collected_s = self._collector.total_s() - collected_s
            self._waited_s += self._clock() - began_s - collected_s
            if batch is END:
                return
            yield batch

    def times(self) -> LoopTimes:
        """The times of all steps until now."""
        return self._pulse.times(
            draws=self._draws, n_windows=self._n_windows, windows_s=self._windows_s
        )

    def _ended(self, step_s: float) -> None:
        self._n += 1
        waited_s, self._waited_s = self._waited_s, 0.0
        collected = self._collector.taken()
        if self._window is not None:
            self._go_on(self._window)
            return
        self._pulse.add(step_s, waited_s=waited_s, collected=collected)
        if self._n >= self._due and self._reader.is_ready():
            self._open()

    def _open(self) -> None:
        if self._others.any_attached():
            self._postpone()
            return
        self._n_recorded = None
        with self._others.ours():
            self._window = Window(with_stack=self._with_stack)

    def _go_on(self, window: Window) -> None:
        """Moves the window on, after the step of attaching or a recorded step."""
        if self._n_recorded is None:
            window.start()
            self._n_recorded = 0
            return
        self._n_recorded += 1
        if self._n_recorded < self._n_window_steps:
            window.next_step()
            return
        self._window = None
        window.close()
        path = self._folder / f"window-{self._n_windows}.json"
        window.write(path)
        self._n_windows += 1
        self._due = self._n + self._every
        self._reader.read(path, self.times())

    def _make_room(self) -> None:
        """Closes the window, because another profiler is about to attach itself, perhaps in the middle
        of a step."""
        window, self._window = self._window, None
        if window is None:
            return
        # The caller of the other profiler must not see our error.
        with suppress(Exception):
            window.close()
        self._postpone()

    def _postpone(self) -> None:
        """Postpones the window because of another profiler."""
        self._due = self._n + self._every
        if not self._has_warned:
            self._has_warned = True
            self._say(OTHERS)

    def _drawing(self) -> AbstractContextManager[object]:
        return nullcontext() if self._window is None else self._window.waiting_for_data()

    def _fail(self, error: Exception) -> None:
        said = " ".join(str(error).split()) or "no reason given"
        self._say(f"{type(error).__name__}: {said}; your loop goes on, the watch ends here")
        self._end()

    def _end(self) -> None:
        """Restores everything."""
        if not self._is_on:
            return
        self._is_on = False
        window, self._window = self._window, None
        try:
            self._collector.stop()
            self._others.stop()
            if window is not None:
                # After a failure, such as of the device, it may not stop; the failure is reported elsewhere.
                with suppress(Exception):
                    window.close()
        finally:
            _WATCHING.release()


def is_profiled() -> bool:
    """Whether a profiler of torch records in this thread."""
    return _profiler_enabled()


class OtherProfilers:
    """Knows the other profilers from `start` to `stop`."""

    def __init__(self, make_room: Callable[[], None]) -> None:
        self._make_room = make_room
        self._known: weakref.WeakSet[Kineto] = weakref.WeakSet()
        self._is_ours = False
        self._wrapped: dict[str, tuple[Any, Any]] = {}

    def start(self) -> None:
        """Begins to call `make_room` before another profiler attaches itself."""
        self._known.update(
            each
            for each in gc.get_objects()
            if type(each) is Kineto and each.entered and each.kineto_results is None
        )
        self._wrap("_prepare_trace", before=self._attaches)
        self._wrap("__exit__", before=self._known.discard)

    def stop(self) -> None:
        """Restores torch."""
        for name, (real, wrapper) in self._wrapped.items():
            if getattr(Kineto, name) is wrapper:
                setattr(Kineto, name, real)
        self._wrapped.clear()

    def any_attached(self) -> bool:
        """Whether another profiler warms up or records."""
        return bool(self._known) or is_profiled()

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Marks profilers that are attached inside as the watch's own."""
        self._is_ours = True
        try:
            yield
        finally:
            self._is_ours = False

    def _attaches(self, profiler: Kineto) -> None:
        if not self._is_ours:
            self._known.add(profiler)
            self._make_room()

    def _wrap(self, name: str, before: Callable[[Kineto], None]) -> None:
        real = getattr(Kineto, name)

        def wrapper(profiler: Kineto, *given: Any) -> Any:
            before(profiler)
            return real(profiler, *given)

        self._wrapped[name] = (real, wrapper)
        setattr(Kineto, name, wrapper)


class OptimizerSteps:
    """Calls `ended` inside its `with` block after each step of that optimizer, in the loop's own
    thread.

    A loop with several optimizers, such as one for two players, steps once a round by the first one. A
    replayed graph of a captured step calls no optimizer.
    """

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._first: weakref.ref[Optimizer] | None = None

    def __enter__(self) -> Self:
        self._hook = register_optimizer_step_post_hook(self._stepped)
        return self

    def __exit__(self, *_error: object) -> None:
        self._hook.remove()

    def _stepped(self, optimizer: Optimizer, *_given: Any) -> None:
        if self._first is None:
            self._first = weakref.ref(optimizer)
        if self._first() is optimizer:
            self._ended()
