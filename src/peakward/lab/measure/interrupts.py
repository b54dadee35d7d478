"""Handles Ctrl-C while a case runs: once ends the case, twice ends the run."""

import signal
import threading
from time import monotonic
from types import FrameType, TracebackType
from typing import Any, Self

TWICE_S = 2.0


class Interrupts:
    """Notes Ctrl-C inside its `with` block, rather than raising it. One object serves every case.

    Only the main thread can take Ctrl-C over. In another thread this does nothing, nor where Ctrl-C is
    ignored, as under nohup.
    """

    def __init__(self) -> None:
        self.pending = False
        """Whether Ctrl-C came since the block was entered."""
        self.stopping = False
        """Whether Ctrl-C came twice within TWICE_S, at most one case apart."""
        self._last_s: float | None = None
        self._previous: Any = None

    def __enter__(self) -> Self:
        self.pending = False
        ignored = signal.getsignal(signal.SIGINT) in (None, signal.SIG_IGN)
        if threading.current_thread() is threading.main_thread() and not ignored:
            self._previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
            self._previous = None

    def raise_if_stopping(self) -> None:
        """Raises KeyboardInterrupt, once, where the run is to end."""
        if self.stopping:
            self.stopping = False
            raise KeyboardInterrupt

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        now_s = monotonic()
        twice = self._last_s is not None and now_s - self._last_s < TWICE_S
        self.stopping = self.stopping or twice
        self._last_s = now_s
        self.pending = True
