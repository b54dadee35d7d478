"""Starts the ranks of a job on this machine, and ends them when one of them is lost. Imports no torch.

Each rank is a process of its own below a keeper (`measure/keeper.py`), so nothing of it outlives this
process. A rank tells how far it is at every part of its step. Whatever ends the job names a rank and a cause:

- a rank that ends without a result: its signal, exit code or error. Errors that the others get because it
  left are not taken for the cause;
- a job in which no rank gets on for `patience_s`: the rank that is behind, and the line of Python that it is
  in; where all are equally far, the calls that they wait in;
- a loss that is not a number: the rank whose loss it was first.
"""

import contextlib
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import msgspec

from peakward.lab.measure import nvml, proc
from peakward.lab.measure.process import KEEPER
from peakward.records.case import DeviceType
from peakward.records.errors import PeakwardError, printable

START_S = 180.0
"""Until every rank has imported torch and joined the others."""
SETTLE_S = 1.5
"""From the first loss until the cause is chosen. gloo tells the others of a rank's end within
milliseconds, and they may be read first."""
DUMP_S = 2.0
"""For the ranks of a job that hangs to write where they are."""
TAIL_BYTES = 1 << 15
LOST_PEER = re.compile(
    r"Connection (closed|reset)|connectionClosed|Broken pipe|remote process exited|NCCL (error|communicator)"
    r"|Socket (Timeout|closed)|\bTCPStore\b|\bstore->|unhandled system error|communicator .*aborted",
    re.IGNORECASE,
)
"""Words of errors that a rank gets since another one has left."""
OF_FRAMEWORK = (
    "/torch/",
    "/typing_extensions.py",
    "/multiprocessing/",
    "/threading.py",
    "<frozen",
    "/parallel/worker.py",
)


class Told(msgspec.Struct, frozen=True, tag=True):
    """A message of a rank: how far it is, its result or its error."""

    step: int = 0
    where: str = ""
    pid: int | None = None
    result: str | None = None
    """JSON."""
    error: str | None = None


class RankError(PeakwardError):
    """A job that ended because of a rank."""

    def __init__(self, rank: int | None, cause: str, *, is_late: bool = False) -> None:
        super().__init__(cause)
        self.rank = rank
        """None where no single one is the cause."""
        self.is_late = is_late
        """Whether the time of the job or of a part ended."""


class StoppedError(PeakwardError):
    """A job that the user ended."""


def launch(
    target: str,
    arguments: Mapping[str, Any],
    *,
    n_ranks: int,
    device: DeviceType,
    timeout_s: float = 600.0,
    patience_s: float = 60.0,
    environ: Mapping[str, str] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> list[Any]:
    """Runs a function as every rank of a job.

    Args:
        target: `package.module:function`, called with the `Rank`, the arguments, and `tell(step, where)`,
            which every rank calls equally often, whenever it gets on. What it returns must go into JSON.
        timeout_s: of the whole job.
        patience_s: without any rank's getting on, after which the job is ended.
        environ: variables beside those of this process.
        stopped: whether the user has ended the job; asked ten times a second.

    Returns:
        The results by rank.

    Raises:
        PeakwardError: as `expect_devices`.
        RankError: a rank was lost, or the job took too long; all ranks have ended.
        StoppedError: the user ended it.
    """
    expect_devices(n_ranks, device)
    with tempfile.TemporaryDirectory(prefix="peakward-ranks-") as folder:
        job = _Job(Path(folder), n_ranks)
        try:
            job.start(target, arguments, device, environ or {})
            return job.run(timeout_s, patience_s, stopped)
        finally:
            job.end()


def expect_devices(n_ranks: int, device: DeviceType) -> None:
    """
    Raises:
        PeakwardError: fewer GPUs than ranks, or GPUs of several kinds. Ranks on a CPU share its cores.
    """
    if device != "cuda":
        return
    names = nvml.visible_names()
    if len(names) < n_ranks:
        raise PeakwardError(
            f"expected a GPU for each of {n_ranks} ranks, got {len(names)}: ask for fewer, or take "
            "--device cpu, whose ranks share its cores over gloo"
        )
    if len(set(names[:n_ranks])) > 1:
        raise PeakwardError(
            f"expected GPUs of one kind, got {', '.join(dict.fromkeys(names[:n_ranks]))}: choose by "
            "CUDA_VISIBLE_DEVICES"
        )


class _Rank:
    """One process, what it told last, and the end of its output."""

    def __init__(self, process: "subprocess.Popen[bytes]", replies: int, folder: Path) -> None:
        self.process, self.replies, self._folder = process, replies, folder
        self.buffer = b""
        self.last = Told(where="its start")
        self.n_told = 0
        self.error: str | None = None
        self.result: str | None = None
        self.pid: int | None = None
        self.is_open = True

    def read(self) -> bool:
        """Takes what it told; whether it got on."""
        chunk = os.read(self.replies, 1 << 16)
        self.is_open = bool(chunk)
        *lines, self.buffer = (self.buffer + chunk).split(b"\n")
        for line in lines:
            told = msgspec.json.decode(line, type=Told)
            self.pid = told.pid or self.pid
            self.error = told.error or self.error
            self.result = told.result if told.result is not None else self.result
            if told.where:
                self.last, self.n_told = told, self.n_told + 1
        return bool(lines)

    def stack(self) -> list[tuple[str, int, str]]:
        """Where it was when it was asked: file, line and function, the innermost first."""
        try:
            text = self._folder.joinpath("stack").read_text(errors="replace")
        except OSError:
            return []
        found = re.findall(r'File "(.*)", line (\d+) in (\S+)', text)
        return [(file, int(line), name) for file, line, name in found]

    def output(self) -> str:
        """The end of what it printed."""
        with self._folder.joinpath("output").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            return file.read().decode(errors="replace")


class _Job:
    def __init__(self, folder: Path, n_ranks: int) -> None:
        self._folder, self._n = folder, n_ranks
        self.ranks: list[_Rank] = []

    def start(
        self, target: str, arguments: Mapping[str, Any], device: DeviceType, more: Mapping[str, str]
    ) -> None:
        given = self._folder / "arguments"
        given.write_bytes(msgspec.json.encode(arguments))
        shared = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(self._n),
            "LOCAL_WORLD_SIZE": str(self._n),
            # What the caller allows is for each: a plain step that has two cores while others run on them
            # took 156 ms in place of 1.1.
            "OMP_NUM_THREADS": str(max(1, min(proc.usable_cores(), len(proc.cores()) // self._n))),
            "PYTHONUNBUFFERED": "1",
            # Under torchrun its agent keeps a store of its own, in which these ranks are not awaited.
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            # All ranks are on this machine, whose own name gloo may not find.
            "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
        }
        for number in range(self._n):
            folder = self._folder / str(number)
            folder.mkdir()
            read, write = os.pipe()
            module = ("-m", "peakward.lab.parallel.worker")
            command = (*KEEPER, str(os.getpid()), sys.executable, *module, target, str(given))
            with folder.joinpath("output").open("wb") as output:
                process = subprocess.Popen(
                    [*command, device, str(write), str(folder / "stack")],
                    env={
                        **os.environ,
                        **shared,
                        **more,
                        "RANK": str(number),
                        "LOCAL_RANK": str(number),
                    },
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=(write,),
                    start_new_session=True,
                )
            os.close(write)
            self.ranks.append(_Rank(process, read, folder))

    def run(self, timeout_s: float, patience_s: float, stopped: Callable[[], bool]) -> list[Any]:
        began_s = got_on_s = monotonic()
        with selectors.DefaultSelector() as ready:
            for number, each in enumerate(self.ranks):
                ready.register(each.replies, selectors.EVENT_READ, number)
            while ready.get_map() and any(each.result is None for each in self.ranks):
                for key, _ in ready.select(0.1):
                    rank = self.ranks[key.data]
                    if rank.read():
                        got_on_s = monotonic()
                    if not rank.is_open:
                        ready.unregister(key.fd)
                        if rank.result is None:
                            self._settle(ready)
                            raise self._lost()
                    elif rank.error is not None:
                        self._settle(ready)
                        raise self._lost()
                if stopped():
                    raise StoppedError("expected the job to end by itself, got Ctrl-C")
                is_started = all(each.pid is not None for each in self.ranks)
                if monotonic() - got_on_s > (patience_s if is_started else START_S):
                    raise self._stuck(f"no rank got on for {patience_s:.3g} s")
                if monotonic() - began_s > timeout_s:
                    raise self._stuck(f"the job did not end within {timeout_s:.3g} s")
        return [msgspec.json.decode(each.result or "null") for each in self.ranks]

    def _settle(self, ready: selectors.BaseSelector) -> None:
        until_s = monotonic() + SETTLE_S
        while (left_s := until_s - monotonic()) > 0 and ready.get_map():
            for key, _ in ready.select(left_s):
                rank = self.ranks[key.data]
                rank.read()
                if not rank.is_open:
                    ready.unregister(key.fd)

    def _lost(self) -> RankError:
        """The rank that the others' errors come from: one ended by a signal, else one with an error of its
        own, the least far of several."""
        ended = [(number, each) for number, each in enumerate(self.ranks) if each.result is None]
        for number, each in ended:
            code = _exit_code(each) if not each.is_open else None
            if code is not None and code < 0 and each.error is None:
                name = signal.Signals(-code).name
                return RankError(number, f"rank {number} was ended by {name} in {_place(each)}")
        own = [pair for pair in ended if pair[1].error and not LOST_PEER.search(pair[1].error)]
        silent = [pair for pair in ended if pair[1].error is None and not pair[1].is_open]
        number, rank = min(
            own or silent or [pair for pair in ended if pair[1].error],
            key=lambda pair: pair[1].last.step,
        )
        if rank.error is not None:
            return RankError(number, f"rank {number} failed in {_place(rank)}: {rank.error}")
        printed = rank.output().strip().splitlines() or ["it printed nothing"]
        return RankError(
            number,
            f"rank {number} ended with exit code {_exit_code(rank)} in {_place(rank)}: "
            f"{printable(printed[-1])}",
        )

    def _stuck(self, why: str) -> RankError:
        waiting = [(at, each) for at, each in enumerate(self.ranks) if each.result is None]
        for _, each in waiting:
            if each.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGUSR1)
        sleep(DUMP_S)
        least = min(each.n_told for _, each in waiting)
        behind = [pair for pair in waiting if pair[1].n_told == least]
        if len(behind) == len(self.ranks) > 1:
            calls = {number: _call(each) for number, each in waiting}
            odd = _odd_one(calls)
            said = "; ".join(f"rank {number} is in {call}" for number, call in calls.items())
            return RankError(odd, f"{why}: {said}", is_late=True)
        number, rank = behind[0]
        where = f"rank {number} is behind, in {_place(rank)}, at {_call(rank)}"
        return RankError(number, f"{why}: {where}", is_late=True)

    def end(self) -> None:
        """Ends every rank and what it started."""
        for each in self.ranks:
            with contextlib.suppress(ProcessLookupError):
                each.process.terminate()
        for each in self.ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.process.wait(10.0)
            os.close(each.replies)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _exit_code(rank: _Rank) -> int | None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        return rank.process.wait(2.0)
    return None


def _place(rank: _Rank) -> str:
    told = rank.last
    return f"step {told.step} ({told.where})" if told.step else told.where


def _call(rank: _Rank) -> str:
    """The innermost line that is not the framework's own, and the call of torch.distributed below it."""
    stack = rank.stack()
    if not stack:
        return "an unknown place"
    own = next(
        (each for each in stack if not any(part in each[0] for part in OF_FRAMEWORK)), stack[0]
    )
    collective = next(
        (
            name
            for file, _, name in stack
            if file.endswith("distributed_c10d.py") and name[0] != "_"
        ),
        None,
    )
    at = f"{own[2]} ({Path(own[0]).name}:{own[1]})"
    return at if collective is None else f"{collective}, called by {at}"


def _odd_one(calls: Mapping[int, str]) -> int | None:
    """The rank whose call differs from all others', where those are alike and more than one."""
    counts: dict[str, list[int]] = {}
    for number, call in calls.items():
        counts.setdefault(call, []).append(number)
    alone = [numbers[0] for numbers in counts.values() if len(numbers) == 1]
    return alone[0] if len(counts) == 2 and len(alone) == 1 and len(calls) > 2 else None
