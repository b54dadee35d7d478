"""Notices profilers of torch that are not the watch's own.

torch lets a second profiler replace the first, also one that its schedule only warms up. Whichever then
stops or writes its trace ends the process with a segmentation fault (torch 2.13). torch does not tell
that a profiler warms up. The one method through which every profiler goes is therefore wrapped while a
watch is on, and a window makes room before another profiler attaches itself.
"""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch._C._autograd import _profiler_enabled
from torch.autograd.profiler import profile as Kineto


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
