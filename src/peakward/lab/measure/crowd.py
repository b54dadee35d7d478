"""Tells whether other work used the CPU cores while steps were timed on them. Imports no torch.

A step whose threads meet at barriers waits for the slowest of them, so a neighbour costs far more than
the core it takes: beside others that took 77% of two cores, a step of 3 ms took 70 to 190 ms. (OpenMP's
threads spin while they wait; under OMP_WAIT_POLICY=passive the same step took 6 ms.)
"""

import multiprocessing
import os
from collections.abc import Collection, Iterable
from time import perf_counter
from types import TracebackType
from typing import NamedTuple, Self

from peakward.lab.measure import proc
from peakward.records.measurement import Telemetry

MAX_SHARE = 0.05
"""The largest share of our cores' time that other work may take; a quiet machine's daemons stay under
it."""
MIN_REGION_S = 0.5
"""The kernel counts a core's time in hundredths of a second."""
USER_HZ = os.sysconf("SC_CLK_TCK")
BUSY_COLUMNS = (0, 1, 2, 5, 6, 7)
"""The columns user, nice, system, irq, softirq and steal of a line of /proc/stat (proc(5)); guests are
in user."""


class Reading(NamedTuple):
    """Seconds so far: of the clock, of work on our cores, and of work by this process and its loader's
    workers on any core."""

    clock_s: float
    busy_s: float
    own_s: float


class Crowd:
    """Watches the cores that this process may use, inside its `with` block."""

    def __init__(self) -> None:
        self._doubt: str | None = None

    def __enter__(self) -> Self:
        self._cores = proc.cores()
        self._before = _read(self._cores)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        after = _read(self._cores)
        if self._before is not None and after is not None:
            self._doubt = judge(self._before, after, len(self._cores))

    def telemetry(self, _n_steps: int, /) -> Telemetry | None:
        """None: no sensors of a CPU are read."""
        return None

    def doubt(self) -> str | None:
        """The reason to doubt the times of the block; None without one, or where the system does not
        tell."""
        return self._doubt


def judge(before: Reading, after: Reading, n_cores: int) -> str | None:
    """The doubt about the stretch between two readings, with its number; None without one."""
    elapsed_s = after.clock_s - before.clock_s
    if elapsed_s < MIN_REGION_S:
        return None
    others_s = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
    share = others_s / (elapsed_s * n_cores)
    if share <= MAX_SHARE:
        return None
    return f"other programs used {share:.0%} of the CPU while timing (limit {MAX_SHARE:.0%})"


def _read(cores: Collection[int]) -> Reading | None:
    stat = proc.read("/proc/stat")
    if stat is None:
        return None
    own = os.times()
    own_s = own.user + own.system + own.children_user + own.children_system
    workers = (each.pid for each in multiprocessing.active_children() if each.pid is not None)
    return Reading(perf_counter(), busy_s(stat, cores), own_s + processes_s(workers))


def processes_s(pids: Iterable[int]) -> float:
    """The seconds that processes which are still alive have worked, user and system."""
    stats = (proc.read(f"/proc/{pid}/stat") for pid in pids)
    return sum(map(process_s, filter(None, stats)))


def process_s(stat: str) -> float:
    """The seconds that a process has worked: fields 14 and 15 of /proc/PID/stat (proc(5)). The name,
    field 2, may hold blanks."""
    columns = stat.rpartition(")")[2].split()
    return (int(columns[11]) + int(columns[12])) / USER_HZ


def busy_s(stat: str, cores: Collection[int]) -> float:
    """The seconds that these cores have worked since the machine started, from /proc/stat."""
    ticks = 0
    for line in stat.splitlines():
        name, *columns = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            ticks += sum(int(columns[i]) for i in BUSY_COLUMNS if i < len(columns))
    return ticks / USER_HZ
