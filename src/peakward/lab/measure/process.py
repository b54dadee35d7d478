"""A worker process, and one request put to it, up to its answer or its end. Imports no torch.

Ctrl-C once ends the case, twice ends the run.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from time import monotonic, sleep
from types import FrameType, TracebackType
from typing import Any, Self

import msgspec

from peakward.lab.measure import failure, proc
from peakward.lab.measure.messages import Answer, Event, Failed, Ready, Released, Reply, Request
from peakward.records.errors import OutOfTimeError, PeakwardError, printable_json
from peakward.records.measurement import EndedBy, Status

START_TIMEOUT_S = 180.0
"""The limit until torch is imported. Importing takes 3 s, or a minute on a machine with ten times the
work of its cores. It does not count as the request's own time."""
RELEASE_TIMEOUT_S = 60.0
"""The limit for giving back the memory that the request left, once it is answered."""
OnEvent = Callable[[Event], None]


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


class Conversation:
    """The exchange between parent and worker over one request. `last` is the latest event. `begun_s` is
    the time of the first one, when the device is ready."""

    def __init__(self, process: WorkerProcess, interrupts: Interrupts, tell: OnEvent) -> None:
        self._process = process
        self._interrupts = interrupts
        self._tell = tell
        self.last = Event(stage="starting")
        self.begun_s: float | None = None
        self._oom_kills = proc.oom_kills()

    def ask(self, request: Request, timeout_s: float, left_s: float = inf) -> Answer:
        """The answer, or the failure that stands for it; at most `timeout_s` after the worker is ready.

        Raises:
            OutOfTimeError: `left_s` from now ended first. The worker is ended.
        """
        ends_s = monotonic() + left_s
        ready = self._process.worker_pid is not None
        deadline_s = min(monotonic() + (timeout_s if ready else START_TIMEOUT_S), ends_s)
        try:
            self._process.send(request)
            while monotonic() < deadline_s:
                if self._interrupts.pending:
                    reason = f"interrupted by Ctrl-C while {self._doing()}"
                    return self._killed("crashed", reason, "user")
                reply = self._process.receive(deadline_s - monotonic())
                if isinstance(reply, Ready):
                    ready, deadline_s = True, min(monotonic() + timeout_s, ends_s)
                elif isinstance(reply, Event):
                    self.begun_s = self.begun_s or monotonic()
                    self.last = reply
                    self._tell(reply)
                elif reply is not None and not isinstance(reply, Released):
                    return reply
        except WorkerDied:
            return self._autopsy()
        except Garbled:
            reason = f"wrote what is no answer into the pipe of its answers while {self._doing()}"
            return self._killed("crashed", reason, self._doer)
        if deadline_s == ends_s:
            self._process.kill()
            raise OutOfTimeError(f"its time in the budget ended while {self.last.stage}")
        limit_s = timeout_s if ready else START_TIMEOUT_S
        return self._killed(
            "timeout", f"not done after {limit_s:g} s, while {self._doing()}", self._doer
        )

    def released(self) -> Released | None:
        """The memory that is left after the answer; None where the worker does not say."""
        deadline_s = monotonic() + RELEASE_TIMEOUT_S
        try:
            while monotonic() < deadline_s and not self._interrupts.pending:
                reply = self._process.receive(deadline_s - monotonic())
                if isinstance(reply, Released):
                    return reply
        except (WorkerDied, Garbled):
            pass
        return None

    @property
    def _doer(self) -> EndedBy:
        """The party that acts now: before the first event the worker does nothing of the case."""
        return "outside" if self.begun_s is None else "case"

    def _killed(self, status: Status, reason: str, ended_by: EndedBy) -> Failed:
        self._process.kill()
        return Failed(status=status, reason=reason, ended_by=ended_by)

    def _autopsy(self) -> Failed:
        return failure.of_death(
            self._process.bury(),
            oom_kills_rose=proc.rose(self._oom_kills, proc.oom_kills()),
            stderr=self._process.tail(),
            stage=self._doing(),
            begun=self.begun_s is not None,
        )

    def _doing(self) -> str:
        """The last event in words: "timing, 12 steps done"."""
        last = self.last
        steps = f", {last.done} step{'s' * (last.done > 1)} done" if last.done else ""
        return last.stage + ("" if last.turn is None else f" case {last.turn + 1}") + steps


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


TWICE_S = 2.0


@contextmanager
def written_beside(path: Path) -> Iterator[Path]:
    """The absolute path to write at first; the file is renamed to `path` once it is whole.

    It lies in a folder of its own beside `path`, which is deleted on leaving with all its content.

    Raises:
        PeakwardError: The path is taken, or its folder does not exist or cannot be written.
    """
    if path.exists():
        raise PeakwardError(f"expected a new file to write, got one that exists, {path}: move it")
    try:
        scratch = tempfile.TemporaryDirectory(
            prefix=".peakward-", dir=path.absolute().parent, ignore_cleanup_errors=True
        )
    except OSError as error:
        raise PeakwardError(
            f'expected a folder that can be written for {path}, got "{error.strerror}": '
            "name another"
        ) from error
    with scratch as folder:
        yield Path(folder) / path.name
