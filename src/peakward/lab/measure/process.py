"""One worker process, seen from its parent. Imports no torch."""

import contextlib
import os
import select
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from time import monotonic, sleep

import msgspec

from peakward.lab.measure.messages import Reply, Request

TAIL_BYTES = 1 << 16
POLL_S = 0.1
"""How often a wait looks up: Ctrl-C and a silent death are noticed this soon."""
KILL_WAIT_S = 10.0
"""A killed process can take seconds to leave the kernel while the driver frees its GPU memory."""
DYING_S = 10.0
"""From a closed pipe to the end of the process; a core of 128 GiB is torn down in seconds."""
TAIL_WAIT_S = 1.0
"""For the rest of the output, should a grandchild in another group hold the pipe open."""


class WorkerDied(Exception):
    """The worker ended without an answer."""


class WorkerProcess:
    """A worker in a session of its own, so that a terminal's Ctrl-C reaches only the parent."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        self.made_s = monotonic()
        """When it was begun to be made."""
        request_read, self._requests = os.pipe()
        self._replies, reply_write = os.pipe()
        self._process = subprocess.Popen(
            [*argv, "--requests", str(request_read), "--replies", str(reply_write)],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(request_read, reply_write),
            start_new_session=True,
        )
        os.close(request_read)
        os.close(reply_write)
        self._ended = False
        self._buffer = b""
        self._tail = b""
        self._reader = threading.Thread(target=self._keep_tail, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Of the process; also of its group and session."""
        return self._process.pid

    def send(self, request: Request) -> None:
        """Hand over a request.

        Raises:
            WorkerDied: it is gone.
        """
        try:
            os.write(self._requests, msgspec.json.encode(request) + b"\n")
        except BrokenPipeError as error:
            raise WorkerDied from error

    def receive(self, timeout_s: float) -> Reply | None:
        """The next reply; None where none came within `timeout_s`, at most POLL_S.

        Raises:
            WorkerDied: it is gone, and nothing it said is left unread.
        """
        if b"\n" not in self._buffer and not self._fill(min(timeout_s, POLL_S)):
            return None
        line, newline, rest = self._buffer.partition(b"\n")
        if not newline:
            return None
        self._buffer = rest
        return msgspec.json.decode(line, type=Reply)

    def _fill(self, timeout_s: float) -> bool:
        readable, _, _ = select.select([self._replies], [], [], max(0.0, timeout_s))
        if not readable:
            # A grandchild may hold the pipe open after the worker itself has died.
            if self._exit_code() is not None:
                raise WorkerDied
            return False
        chunk = os.read(self._replies, 1 << 16)
        if not chunk:
            raise WorkerDied
        self._buffer += chunk
        return True

    def bury(self) -> int | None:
        """End what is left of a worker that died by itself; how it died, negative for a signal.

        None where it closed its pipe but lived on.
        """
        deadline_s = monotonic() + DYING_S
        while (code := self._exit_code()) is None and monotonic() < deadline_s:
            sleep(POLL_S / 10)
        self.kill()
        return code

    def _exit_code(self) -> int | None:
        """Looks without reaping: until then no other process can get this one's id, or group."""
        info = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is None:
            return None
        return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status

    def kill(self) -> None:
        """End it and all its children now. Harmless where that was done."""
        if self._ended:
            return
        self._ended = True
        os.killpg(self.pid, signal.SIGKILL)
        os.close(self._requests)
        os.close(self._replies)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_WAIT_S)
        self._reader.join(TAIL_WAIT_S)

    def tail(self) -> str:
        """The end of what it and its children printed."""
        return self._tail.decode(errors="replace")

    def _keep_tail(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        with stream:
            while chunk := os.read(stream.fileno(), 1 << 14):
                self._tail = (self._tail + chunk)[-TAIL_BYTES:]
