"""`peakward bench --executor`: the cases of a sweep as jobs, of Slurm or of processes here, by submitit.

A job measures one case as a sweep does, stores nothing, and leaves its record as JSON in a folder that its
machine shares with this one: `<database>.jobs`. This process alone writes the database. What a killed sweep
leaves there, records and jobs that still run, the next one takes up.
"""

import contextlib
import hashlib
import importlib.util
import io
import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from math import ceil, inf
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import msgspec

from peakward.api import session
from peakward.api.machine import Machine, this_machine
from peakward.api.session import Observer
from peakward.lab.measure import assemble
from peakward.lab.measure.isolated import Workers
from peakward.lab.measure.messages import Failed
from peakward.lab.measure.sweep import OnDone, Results, Sweep
from peakward.records import codec
from peakward.records.case import Case
from peakward.records.errors import PeakwardError, printable
from peakward.records.measurement import Environment, Measurement, Protocol
from peakward.store.database import Store

ExecutorName = Literal["local", "slurm"]
R = TypeVar("R", bound=msgspec.Struct)
POLL_S = 0.5
ASKED_S = 10.0
"""Time between questions to Slurm whether a job is still there; a record is looked for at every poll."""
GRACE_S = 30.0
"""Time that a record may come after its job has gone: folders of a network are slow."""
MARGIN_S = 600.0
"""Beyond two times a case's limit: a worker that starts, a module that is checked, a second try."""
LAST_S = 10.0
_UNNAMED = re.compile(r"\.?(?:submission_file_)?[0-9a-f]{32}\.(?:pkl|sh)$")
"""Files that submitit wrote for a job that was refused."""
_ERRORS = "submitit.core.utils"
_AT_ONCE = {"local": 1, "slurm": 500}
"""Jobs that are submitted at a time. Here one, since two would disturb each other's times."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a job: measure, or else tell its machine."""

    device: str | None
    case: Case | None = None
    protocol: Protocol | None = None
    visible: tuple[str | None] | None = None
    """CUDA_VISIBLE_DEVICES as this process has it, where the job would have another: submitit hides all GPUs
    from a job here that asks for none."""


class _Refused(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job could not do it."""

    refused: str


class Jobs:
    """The jobs of one sweep, for as long as the `with` block lasts; those that then still run are ended."""

    def __init__(self, name: ExecutorName, folder: Path, sbatch: Mapping[str, str]) -> None:
        """
        Raises:
            PeakwardError: no submitit, no Slurm here, or a folder that cannot be made.
        """
        self.name: ExecutorName = name
        self._folder = folder.absolute()
        self._executor = _executor(name, self._folder, sbatch)
        self._limited = "time" in sbatch
        self._running: dict[str, Any] = {}
        """submitit's job for each key."""
        self._asked_s: dict[str, float] = {}
        self._gone_s: dict[str, float] = {}
        self._ended: list[str] = []
        """Numbers of jobs whose files are not needed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for key, job in [*self._running.items()]:
            with contextlib.suppress(subprocess.SubprocessError, OSError):
                job.cancel(check=False)
            self._end(key, tidy=True)
        self._wait_for_last()
        for number in self._ended:
            self._tidy(re.compile(rf"{re.escape(number)}_"))
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    @property
    def room(self) -> int:
        """How many more may be submitted now."""
        return _AT_ONCE[self.name] - len(self._running)

    def submit(self, key: str, request: Request, limit_s: float) -> str:
        """Begin a job, or take up the one of this key that an earlier process began. Returns its number.

        Raises:
            PeakwardError: it is refused.
        """
        if self._place(key, "json").exists():
            return self._number(key)
        if (job := self._earlier(key)) is not None:
            self._running[key] = job
            return str(job.job_id)
        if self.name == "local":
            request = msgspec.structs.replace(
                request, visible=(os.environ.get("CUDA_VISIBLE_DEVICES"),)
            )
        if not self._limited or self.name == "local":
            field = "timeout_min" if self.name == "local" else "time"
            self._executor.update_parameters(**{field: ceil(limit_s / 60)})
        try:
            # What sbatch says goes into our one line.
            with contextlib.redirect_stderr(io.StringIO()):
                job = self._executor.submit(
                    answer, codec.to_json(request), str(self._place(key, "json"))
                )
        except Exception as error:
            known = RuntimeError | subprocess.SubprocessError | OSError
            if not isinstance(error, known) and type(error).__module__ != _ERRORS:
                raise
            self._tidy(_UNNAMED)
            raise PeakwardError(
                f"expected {self.name} to take a job, got {_last_line(error)}: see `--sbatch`"
            ) from error
        self._place(key, "job").write_text(str(job.job_id))
        self._running[key] = job
        return str(job.job_id)

    def left(self, key: str) -> bytes | None:
        """The record that the job of this key left, taken away; None before there is one."""
        place = self._place(key, "json")
        try:
            found = place.read_bytes()
        except FileNotFoundError:
            return None
        self._end(key, tidy=True)
        place.unlink(missing_ok=True)
        return found

    def lost(self, key: str) -> str | None:
        """Why no record of a submitted job will come; None where one still may."""
        job, now_s = self._running[key], time.monotonic()
        if now_s - self._asked_s.get(key, -inf) < (ASKED_S if self.name == "slurm" else 0):
            return None
        self._asked_s[key] = now_s
        if self._is_there(job):
            self._gone_s.pop(key, None)
            return None
        grace_s = GRACE_S if self.name == "slurm" else POLL_S
        if now_s - self._gone_s.setdefault(key, now_s) < grace_s:
            return None
        self._end(key, tidy=False)
        return f"the {self.name} job {job.job_id} ended without a record: see {job.paths.stderr}"

    def _is_there(self, job: Any) -> bool:
        if self.name == "slurm":
            return _in_queue(str(job.job_id))
        mine = job._process is not None
        return not job.done() if mine else _is_of_submitit(str(job.job_id))

    def _earlier(self, key: str) -> Any | None:
        """The job of this key that an earlier process began, if it is still there."""
        if not (number := self._number(key)):
            return None
        job = self._executor.job_class(folder=self._folder, job_id=number)
        return job if self._is_there(job) else None

    def _number(self, key: str) -> str:
        """As it was written when the job began; empty where none was."""
        try:
            found = self._place(key, "job").read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return ""
        return found if found.isdecimal() else ""

    def _end(self, key: str, *, tidy: bool) -> None:
        """The job counts no more; what submitit wrote of it goes at the end, once the job has ended."""
        if tidy and (number := self._number(key)):
            self._ended.append(number)
        self._running.pop(key, None)
        self._place(key, "job").unlink(missing_ok=True)

    def _wait_for_last(self) -> None:
        """A job writes its record a moment before it ends."""
        ends_s = time.monotonic() + LAST_S
        for number in self._ended[-_AT_ONCE["local"] :]:
            job = self._executor.job_class(folder=self._folder, job_id=number)
            while time.monotonic() < ends_s and self._is_there(job):
                time.sleep(POLL_S / 5)

    def _tidy(self, names: re.Pattern[str]) -> None:
        """Remove what submitit wrote under such names, and its links to nothing."""
        for each in self._folder.iterdir():
            if names.match(each.name) or (each.is_symlink() and not each.exists()):
                each.unlink(missing_ok=True)

    def _place(self, key: str, ending: str) -> Path:
        return self._folder / f"{key}.{ending}"


class JobSweep(Sweep):
    """A sweep whose cases are measured by jobs. All are submitted before the first is waited for, and what
    came is stored in the order in which it comes."""

    def __init__(
        self,
        store: Results,
        workers: Workers,
        environment: Environment,
        *,
        jobs: Jobs,
        plan: Sequence[tuple[Case, Protocol]],
        observer: Observer,
    ) -> None:
        self._told: OnDone = observer.on_done
        super().__init__(store, workers, environment, on_done=self._told)
        self._jobs, self._observer = jobs, observer
        self._waiting = [each for each in plan if self.known(*each) is None]
        self._ours = {_key(each): each for each in self._waiting}
        self._submitted: dict[str, assemble.Stopwatch] = {}
        self._done: dict[str, Measurement] = {}

    def measure(self, case: Case, protocol: Protocol) -> Measurement:
        """The stored result of the case, or what its job brings; a job that is lost is a case that crashed.

        Raises:
            PeakwardError: a job is refused.
            KeyboardInterrupt: Ctrl-C, which ends all jobs.
        """
        key = _key((case, protocol))
        if key not in self._ours:
            found = self.known(case, protocol)
            assert found is not None
            self._told(found)
            return found
        while key not in self._done:
            self._submit()
            if not self._collect():
                time.sleep(POLL_S)
        return self._done[key]

    def _environment(self, _case: Case) -> Environment:
        return self.environment

    def _submit(self) -> None:
        before = len(self._submitted)
        number = ""
        while self._waiting and self._jobs.room > 0:
            case, protocol = self._waiting.pop(0)
            key = _key((case, protocol))
            request = Request(device=case.device, case=case, protocol=protocol)
            number = self._jobs.submit(key, request, 2 * protocol.timeout_s + MARGIN_S)
            self._submitted[key] = assemble.Stopwatch()
        if len(self._submitted) > before:
            jobs = f"{len(self._submitted)}/{len(self._ours)} cases are jobs of {self._jobs.name}"
            self._observer.on_stage(f"{jobs}, the last is {number}")

    def _collect(self) -> bool:
        """Store what has come. Returns whether anything has."""
        came = False
        for key in [each for each in self._submitted if each not in self._done]:
            found = self._brought(key)
            if found is not None:
                self.store.add_measurement(found)
                self._done[key] = found
                self._told(found)
                came = True
        return came

    def _brought(self, key: str) -> Measurement | None:
        case, protocol = self._ours[key]
        left = self._jobs.left(key)
        if left is not None:
            try:
                found = _decoded(left, Measurement)
            except PeakwardError as error:
                return self._failed(key, str(error))
            if (found.case, found.protocol) == (case, protocol):
                return found
            return self._failed(key, "its record is of another case")
        reason = self._jobs.lost(key)
        return None if reason is None else self._failed(key, reason)

    def _failed(self, key: str, reason: str) -> Measurement:
        failed = Failed(status="crashed", reason=reason, ended_by="outside")
        case, protocol = self._ours[key]
        return assemble.measurement(case, protocol, self.environment, self._submitted[key], failed)


def machine(jobs: Jobs, device: str | None, observer: Observer) -> Machine:
    """The machine on which jobs run, as a job tells it.

    Raises:
        PeakwardError: a job is refused or lost, or has no such device.
    """
    key = f"machine-{device}"
    jobs.left(key)  # A killed sweep's, maybe of another machine.
    number = jobs.submit(key, Request(device=device), MARGIN_S)
    observer.on_stage(f"job {number} of {jobs.name} asks what its machine is")
    while (left := jobs.left(key)) is None:
        if (reason := jobs.lost(key)) is not None:
            raise PeakwardError(f"expected a job to tell its machine: {reason}")
        time.sleep(POLL_S)
    return _decoded(left, Machine)


@contextlib.contextmanager
def opened(
    db: Path,
    here: Machine,
    observer: Observer,
    jobs: Jobs,
    plan: Sequence[tuple[Case, Protocol]],
) -> Iterator[session.Session]:
    """As `session.opened`, for cases that jobs measure."""
    with Store.open(db) as store, session.workers(observer) as idle:
        sweep = JobSweep(store, idle, here.environment, jobs=jobs, plan=plan, observer=observer)
        yield session.Session(store, sweep)


def answer(request_json: bytes, place: str) -> None:
    """The function that a job runs. It leaves the record that is asked for, written whole or not at all."""
    try:
        record = _answered(codec.from_json(request_json, Request))
    except PeakwardError as error:
        record = _Refused(refused=str(error))
    beside = Path(f"{place}.{os.getpid()}")
    beside.write_bytes(codec.to_json(record))
    beside.replace(place)


def _answered(request: Request) -> msgspec.Struct:
    if request.visible is not None:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        if request.visible[0] is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = request.visible[0]
    session.expect_torch()
    if request.case is None or request.protocol is None:
        return this_machine(request.device)
    with session.workers() as workers:
        environment = workers.environment(request.case.device)
        return Sweep(_Nothing(), workers, environment).measure(request.case, request.protocol)


class _Nothing:
    """A store that holds nothing: a job's record goes to the process that stores."""

    def measurement(self, _case: Case, _protocol: Protocol, _environment_key: str) -> None:
        """None is known."""

    def add_measurement(self, _measurement: Measurement) -> None:
        """Nothing is stored."""


def _decoded(left: bytes, kind: type[R]) -> R:
    if codec.fields(left) == {"refused"}:
        raise PeakwardError(codec.from_json(left, _Refused).refused)
    return codec.from_json(left, kind)


def _key(planned: tuple[Case, Protocol]) -> str:
    return hashlib.sha256(b"\n".join(map(codec.to_json, planned))).hexdigest()[:24]


def _executor(name: ExecutorName, folder: Path, sbatch: Mapping[str, str]) -> Any:
    if importlib.util.find_spec("submitit") is None:
        raise PeakwardError(
            f"expected submitit, by which --executor {name} runs jobs, got none: "
            "run `pip install 'peakward[slurm]'`"
        )
    import submitit

    if name == "local" and sbatch:
        raise PeakwardError(
            "expected --sbatch with --executor slurm, got it with local: leave it out"
        )
    kind = submitit.SlurmExecutor if name == "slurm" else submitit.LocalExecutor
    if kind.affinity() <= 0:
        raise PeakwardError(
            "expected Slurm for --executor slurm, got no srun on the path: run this where jobs are "
            "submitted, or try --executor local"
        )
    try:
        executor = kind(folder=folder)
    except OSError as error:
        raise PeakwardError(
            f"expected a folder for jobs, got {str(folder)!r}: {error.strerror}"
        ) from error
    if name == "slurm":
        executor.update_parameters(job_name="peakward", additional_parameters=dict(sbatch))
    return executor


def _in_queue(number: str) -> bool:
    """Whether Slurm still has the job; where it does not answer, it is taken to have."""
    try:
        asked = subprocess.run(
            ["squeue", "--noheader", f"--jobs={number}", "--format=%T"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return True
    if asked.returncode:
        return "Invalid job id" not in asked.stderr
    return bool(asked.stdout.strip())


def _is_of_submitit(pid: str) -> bool:
    try:
        return b"submitit" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _last_line(error: BaseException) -> str:
    lines = [each.strip() for each in str(error).splitlines() if each.strip()]
    said = [each for each in lines if "error" in each.lower()] or lines or [type(error).__name__]
    return printable(said[0])[:300]
