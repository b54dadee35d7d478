"""Profilers of torch that are not the watch's own.

torch lets a second profiler take the place of the first, also of one that its schedule only warms up,
and whichever then stops or writes its trace ends the process with a segmentation fault (torch 2.13).
Nothing of torch's says that a profiler warms up, so the one method through which each of them goes is
wrapped while a watch is on: a window makes room before another profiler attaches itself.
"""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch._C._autograd import _profiler_enabled
from torch.autograd.profiler import profile as Kineto


def is_profiled() -> bool:
    """Whether a profiler of torch's records in this thread."""
    return _profiler_enabled()


class OtherProfilers:
    """Knows them from `start` to `stop`."""

    def __init__(self, make_room: Callable[[], None]) -> None:
        self._make_room = make_room
        self._known: weakref.WeakSet[Kineto] = weakref.WeakSet()
        self._is_ours = False
        self._wrapped: dict[str, tuple[Any, Any]] = {}

    def start(self) -> None:
        """From now on `make_room` is called before another profiler attaches itself."""
        self._known.update(
            each
            for each in gc.get_objects()
            if type(each) is Kineto and each.entered and each.kineto_results is None
        )
        self._wrap("_prepare_trace", before=self._attaches)
        self._wrap("__exit__", before=self._known.discard)

    def stop(self) -> None:
        """torch is as before."""
        for name, (real, wrapper) in self._wrapped.items():
            if getattr(Kineto, name) is wrapper:
                setattr(Kineto, name, real)
        self._wrapped.clear()

    def any_attached(self) -> bool:
        """Whether one warms up or records."""
        return bool(self._known) or is_profiled()

    @contextmanager
    def ours(self) -> Iterator[None]:
        """A profiler that is attached in here is the watch's own."""
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
