"""The process between a worker and its parent: `python -I -S keeper.py PARENT_PID COMMAND…`.

It runs the command as a worker. When the worker or the parent ends, for whatever reason, it kills the
worker and all that the worker started, and then ends as the worker did. No user code runs in it, so
nothing can hold its interpreter; it imports only the standard library, and starts in 30 ms.

- The parent is watched by a pidfd (Linux 5.3). Unlike `PR_SET_PDEATHSIG`, this tells of the process and
not of the thread that started us. Elsewhere the parent is looked for twice a second.
- The worker dies with this process by `PR_SET_PDEATHSIG` (prctl(2)), whatever its interpreter does.
- The worker's children come to this process when their own parent ends, by `PR_SET_CHILD_SUBREAPER`, in
whichever session they are. A system without it (macOS) loses those that left the worker's process
group.
"""

import ctypes
import os
import resource
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LOOK_MS = 500
"""The time between two looks at our parent, where no pidfd tells of its end."""
AGAIN_MS = 100
"""The time between two rounds of killing: the children of a dying process come to us only once it has
died."""


def main() -> None:
    """Runs the command until it, or the parent, ends."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    keeper = os.getpid()
    worker = os.fork()
    if worker == 0:
        _become_worker(keeper, command)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # The worker's pipes close when the worker ends.
    _wait(worker, parent)
    _end_like(_end_all(worker))


def _become_worker(keeper: int, command: list[str]) -> None:
    try:
        os.setsid()
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == keeper:  # The keeper may have ended before the line above.
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
    finally:
        os._exit(127)


def _wait(worker: int, parent: int) -> None:
    """Returns when the worker or the parent has ended, or when a signal asks for an end."""
    woken = _wake_on_signals()
    asked: list[int] = []
    for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(each, lambda number, _frame: asked.append(number))
    ends = select.poll()
    ends.register(woken, select.POLLIN)
    timeout_ms = None if _watch(parent, ends) else LOOK_MS
    while not asked and os.getppid() == parent and not _has_ended(worker):
        ends.poll(timeout_ms)
        _empty(woken)
        _reap_others(worker)


def _wake_on_signals() -> int:
    """A pipe that becomes readable when a signal comes, so that it also ends a poll that begins after
    the signal."""
    woken, waker = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    return woken


def _empty(pipe: int) -> None:
    with suppress(BlockingIOError):
        while os.read(pipe, 512):
            pass


def _watch(parent: int, ends: "select.poll") -> bool:
    """Whether the poll will report the parent's end."""
    try:
        ends.register(os.pidfd_open(parent), select.POLLIN)
    except (AttributeError, OSError):  # Not Linux, an old one, or a sandbox.
        return False
    return True


def _has_ended(worker: int) -> bool:
    """Whether the worker has ended. It looks without reaping: until then no other process can get its
    id, or its group's."""
    return os.waitid(os.P_PID, worker, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _reap_others(worker: int) -> None:
    """Reaps the worker's daemons that ended."""
    with suppress(ChildProcessError):
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid == worker:
                return
            os.waitpid(ended.si_pid, 0)


def _end_all(worker: int) -> int:
    """Kills the worker, its group and all processes that come to us. Returns how the worker ended, as
    subprocess says it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(worker, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(worker, signal.SIGKILL)  # It may not lead a group yet.
    code = 0
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == worker:
            code = os.waitstatus_to_exitcode(status)
        elif pid == 0:
            for child in _children():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(child, signal.SIGKILL)
            select.select([], [], [], AGAIN_MS / 1e3)


def _children() -> Iterator[int]:
    """The children of this process, from /proc/PID/stat (proc(5)); the name, field 2, may hold blanks
    and brackets."""
    us = str(os.getpid())
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if stat.read_bytes().rpartition(b")")[2].split()[1].decode() == us:
                yield int(stat.parent.name)


def _end_like(code: int) -> None:
    """Ends as the worker did: by its exit code, or its signal."""
    if code >= 0:
        os._exit(code)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, ValueError):  # SIGKILL has no handler to reset.
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    os._exit(128 - code)


def _prctl(option: int, value: int) -> None:
    """Calls prctl(2). Only Linux has it; elsewhere its effects are missing, as the module says."""
    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main()
