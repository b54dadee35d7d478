"""One worker process, seen from its parent. Imports no torch.

The parent starts the worker's keeper (`keeper.py`), which lasts as long as the worker does and ends as
it ends.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic, sleep

import msgspec

from peakward.lab.measure.messages import Ready, Reply, Request
from peakward.records.errors import printable_json

KEEPER = (sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py")))
"""-I, -S: the user's environment does not reach it, and it starts in a third of the time."""
MAX_REPLY_BYTES = 1 << 26
"""The size limit of a reply. The largest answer, a capture of a large module's step, takes a few MiB."""
TAIL_BYTES = 1 << 16
POLL_S = 0.1
"""The period of a wait: Ctrl-C and a silent death are noticed this soon."""
KILL_WAIT_S = 10.0
"""A killed process can take seconds to leave the kernel while the driver frees its GPU memory."""
DYING_S = 10.0
"""The time from a closed pipe to the end of the process; a core of 128 GiB is torn down in seconds."""
TAIL_WAIT_S = 1.0
"""The time for the rest of the output, in case a process that escaped the keeper holds the pipe open."""


class WorkerDied(Exception):
    """The worker ended without an answer."""


class Garbled(Exception):
    """A process other than the worker wrote into the pipe of its replies."""


class WorkerProcess:
    """A worker in a session of its own, so that a terminal's Ctrl-C reaches only the parent."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        """
        Raises:
            OSError: no process can be started.
        """
        self.made_s = monotonic()
        """The time when the making of it began."""
        request_read, self._requests = os.pipe()
        self._replies, reply_write = os.pipe()
        pipes = ("--requests", str(request_read), "--replies", str(reply_write))
        try:
            self._process = subprocess.Popen(
                [*KEEPER, str(os.getpid()), *argv, *pipes],
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(request_read, reply_write),
                start_new_session=True,
            )
        except OSError:
            os.close(self._requests)
            os.close(self._replies)
            raise
        finally:
            os.close(request_read)
            os.close(reply_write)
        self.worker_pid: int | None = None
        """The process id of the worker itself; None until it is ready."""
        self._ended = False
        self._buffer = b""
        self._tail = b""
        self._reader = threading.Thread(target=self._keep_tail, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process id of the keeper."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it can no longer answer."""
        return self._ended or self._exit_code() is not None

    def send(self, request: Request) -> None:
        """Hands over a request.

        Raises:
            WorkerDied: It is gone.
        """
        try:
            os.write(self._requests, msgspec.json.encode(request) + b"\n")
        except BrokenPipeError as error:
            raise WorkerDied from error

    def receive(self, timeout_s: float) -> Reply | None:
        """The next reply; None where none came within `timeout_s`, at most POLL_S.

        Raises:
            WorkerDied: It is gone, and all of its output is read.
            Garbled: The input is not a reply.
        """
        if b"\n" not in self._buffer and not self._fill(min(timeout_s, POLL_S)):
            return None
        line, newline, rest = self._buffer.partition(b"\n")
        if not newline:
            if len(self._buffer) > MAX_REPLY_BYTES:
                raise Garbled
            return None
        self._buffer = rest
        try:
            reply = msgspec.json.decode(printable_json(line.decode()), type=Reply)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Garbled from error
        if isinstance(reply, Ready):
            self.worker_pid = reply.pid
        return reply

    def _fill(self, timeout_s: float) -> bool:
        readable, _, _ = select.select([self._replies], [], [], max(0.0, timeout_s))
        if not readable:
            # A process that escaped the keeper may hold the pipe open.
            if self._exit_code() is not None:
                raise WorkerDied
            return False
        chunk = os.read(self._replies, 1 << 16)
        if not chunk:
            raise WorkerDied
        self._buffer += chunk
        return True

    def bury(self) -> int | None:
        """Ends the rest of a worker that died by itself. Returns how it died, negative for a signal;
        None where it closed its pipe but lived on."""
        deadline_s = monotonic() + DYING_S
        while (code := self._exit_code()) is None and monotonic() < deadline_s:
            sleep(POLL_S / 10)
        self.kill()
        return code

    def _exit_code(self) -> int | None:
        """The exit code, or None. It looks without reaping: until then no other process can get this
        one's id, or group."""
        info = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is None:
            return None
        return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status

    def kill(self) -> None:
        """Ends it and all that it started now. A second call is harmless."""
        if self._ended:
            return
        self._ended = True
        os.kill(self.pid, signal.SIGTERM)
        os.kill(self.pid, signal.SIGCONT)  # A stopped keeper gets no other signal before this one.
        os.close(self._requests)
        os.close(self._replies)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_WAIT_S)
        self._reader.join(TAIL_WAIT_S)

    def tail(self) -> str:
        """The end of the output of the worker and its children."""
        return self._tail.decode(errors="replace")

    def _keep_tail(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        with stream:
            while chunk := os.read(stream.fileno(), 1 << 14):
                self._tail = (self._tail + chunk)[-TAIL_BYTES:]
