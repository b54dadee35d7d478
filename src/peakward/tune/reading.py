"""Windows of a watched loop, read beside it.

In a process of its own: reading takes seconds of Python, which in a thread would take the
interpreter's lock from the loop. A thread waits for that process, which needs no lock.
"""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from peakward.records import codec
from peakward.records.errors import PeakwardError
from peakward.records.loop import LoopTimes, WatchedWindow

READER = (sys.executable, "-P", "-m", "peakward.tune.window_reader")
"""-P: no module of the working directory is taken for another."""
READ_S = 300.0
"""A trace of 200 MB takes a fast core 5 s, and a machine may be busy."""


class WindowReader:
    """Reads one at a time; `on_reading` and `on_failure` are called in its thread."""

    def __init__(
        self,
        *,
        on_reading: Callable[[WatchedWindow], None],
        on_failure: Callable[[str], None],
        command: Sequence[str] = READER,
    ) -> None:
        self._on_reading, self._on_failure, self._command = on_reading, on_failure, command
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_dropped = self._has_failed = False

    def is_ready(self) -> bool:
        """Whether none is being read, and none of those before failed to be."""
        return not self._has_failed and (self._thread is None or not self._thread.is_alive())

    def read(self, trace: Path, times: LoopTimes) -> None:
        """Begin; the trace is removed when it has been read."""
        self._thread = threading.Thread(
            target=self._run, args=(trace, times), name="peakward-watch", daemon=True
        )
        self._thread.start()

    def finish(self, wait_s: float) -> bool:
        """Wait for the window that is being read, and drop it where that is not enough; whether it was."""
        if self._thread is None:
            return True
        self._thread.join(wait_s)
        if not self._thread.is_alive():
            return True
        self._is_dropped = True
        if self._process is not None:
            self._process.kill()
        self._thread.join(1.0)
        return False

    def _run(self, trace: Path, times: LoopTimes) -> None:
        try:
            found = self._read(trace, times)
        except (OSError, PeakwardError, subprocess.TimeoutExpired) as error:
            self._has_failed = True
            if not self._is_dropped:
                self._on_failure(str(error))
            return
        finally:
            trace.unlink(missing_ok=True)
        if found is not None and not self._is_dropped:
            self._on_reading(found)

    def _read(self, trace: Path, times: LoopTimes) -> WatchedWindow | None:
        """None where Ctrl-C met the reader before it had a group of its own: no failure of a window."""
        with subprocess.Popen(
            [*self._command, str(trace)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,  # Ctrl-C is for the loop, which then ends this process
        ) as process:
            self._process = process
            try:
                written, said = process.communicate(codec.to_json(times), timeout=READ_S)
            except BaseException:
                process.kill()
                raise
        if process.returncode == -signal.SIGINT:
            return None
        if process.returncode:
            last = said.decode(errors="replace").strip().splitlines()[-1:] or ["no reason given"]
            raise PeakwardError(
                f"the reader of a window ended with {process.returncode}: {last[0]}"
            )
        return codec.from_json(written, WatchedWindow)
