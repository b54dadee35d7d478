"""The process that samples a GPU's sensors, seen from its parent. Imports no torch.

A failure of it means fewer samples or none; nothing here fails a measurement.
"""

import contextlib
import os
import select
import subprocess
import sys
import weakref

import msgspec

from peakward.lab.measure.sensors import BEGIN, END, READY, Sample

SENSORS = (sys.executable, "-P", "-m", "peakward.lab.measure.sensors")
"""-P: as for the worker."""
READY_WAIT_S = 10.0
"""The time until it is ready. It starts in 0.1 s; where memory is short, in seconds."""
END_WAIT_S = 5.0
"""The time for the last reading and the answer, which take milliseconds."""
KILL_WAIT_S = 1.0
"""The time after which it is left behind: a call into a driver that hangs cannot be killed."""


class SensorProcess:
    """Starts at once and waits, so that `begin` finds it ready; ends with `end` or when it is no longer
    referenced.

    It stays in its parent's group: a terminal that stops the one stops the other.
    """

    def __init__(self, uuid: str) -> None:
        """
        Raises:
            OSError: no process can be started.
        """
        self._process = subprocess.Popen(
            [*SENSORS, uuid],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._end = weakref.finalize(self, _end, self._process)
        self._end.atexit = (
            False  # At exit the pipe closes by itself, and a forked child's exit is not ours.
        )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def begin(self) -> None:
        """Lets it sample from now on. A process that is not ready in time is killed, because its start
        would disturb the measurement."""
        requests, replies = self._process.stdin, self._process.stdout
        assert requests is not None and replies is not None
        ready = select.poll()
        ready.register(replies, select.POLLIN)
        if ready.poll(READY_WAIT_S * 1e3) and os.read(replies.fileno(), len(READY)) == READY:
            with contextlib.suppress(BrokenPipeError):
                requests.write(BEGIN)
        else:
            self._process.kill()

    def end(self) -> list[Sample]:
        """Ends it, and returns its samples."""
        return self._end() or []


def _end(process: subprocess.Popen[bytes]) -> list[Sample]:
    try:
        said, _ = process.communicate(END, timeout=END_WAIT_S)
        return msgspec.json.decode(said, type=list[Sample])
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=KILL_WAIT_S)
    except msgspec.DecodeError:
        pass
    return []
