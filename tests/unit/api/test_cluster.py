"""Cases as jobs: an executor that this test carries out by hand stands in the place of submitit's."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import msgspec
import pytest

from peakward.api import cluster
from peakward.api.session import Observer
from peakward.cli.main import main
from peakward.lab.measure import assemble, probe
from peakward.lab.measure.messages import Failed
from peakward.models.presets import model as preset
from peakward.records import codec
from peakward.records.case import ModelCase, Workload
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Protocol

PROTOCOL = Protocol()
ENVIRONMENT = probe.environment("cpu")


class Job:
    """One that ends when the test says so; its number is one of no process."""

    there: ClassVar[dict[str, bool]] = {}

    def __init__(self, folder, job_id):
        self.job_id, self._process = job_id, SimpleNamespace(wait=lambda: None)
        self.paths = SimpleNamespace(stderr=folder / f"{job_id}_0_log.err")

    def done(self):
        return not self.there.get(self.job_id)

    def cancel(self, check):
        self.there[self.job_id] = False


class Executor:
    """Keeps what is submitted."""

    job_class = Job

    def __init__(self, folder):
        folder.mkdir(exist_ok=True)
        self.folder, self.submitted, self.refuses = folder, {}, None

    def update_parameters(self, **_fields):
        pass

    def submit(self, function, request, place):
        if self.refuses:
            raise RuntimeError(self.refuses)
        number = str(4_000_000 + len(Job.there))
        (self.folder / f"{number}_submitted.pkl").write_bytes(b"")
        Job.there[number] = True
        self.submitted[number] = (codec.from_json(request, cluster.Request), place)
        return Job(self.folder, number)

    def carry_out(self, number, record=None):
        """The job of this number leaves a record."""
        request, place = self.submitted[number]
        answer = Failed(status="oom", reason="too big", ended_by="case")
        made = assemble.measurement(
            request.case, request.protocol, ENVIRONMENT, assemble.Stopwatch(), answer
        )
        Path(place).write_bytes(codec.to_json(made if record is None else record))
        Job.there[number] = False


class Shelf(list):
    """The store, in memory."""

    def measurement(self, case, protocol, _key):
        kept = [each for each in self if (each.case, each.protocol) == (case, protocol)]
        return kept[-1] if kept and kept[-1].final else None

    add_measurement = list.append


@pytest.fixture
def executor(tmp_path, monkeypatch):
    made = Executor(tmp_path / "db.jobs")
    monkeypatch.setattr(Job, "there", {})
    monkeypatch.setattr(cluster, "_executor", lambda *_given: made)
    monkeypatch.setattr(cluster, "_in_queue", lambda number: bool(Job.there.get(number)))
    monkeypatch.setattr(cluster, "_is_of_submitit", lambda number: bool(Job.there.get(number)))
    monkeypatch.setattr(cluster, "GRACE_S", 0.0)
    monkeypatch.setattr(cluster, "ASKED_S", 0.0)
    monkeypatch.setattr(cluster, "POLL_S", 0.0)
    monkeypatch.setattr(cluster, "LAST_S", 0.0)
    return made


@pytest.fixture
def plan():
    return [
        (ModelCase(model=preset("tiny"), workload=Workload(batch_size=n, seq_len=8), device="cpu"), PROTOCOL)
        for n in (1, 2, 3)
    ]  # fmt: skip


def a_sweep(jobs, plan, store, seen=None):
    observer = Observer()
    if seen is not None:
        observer.on_done = seen.append
    return cluster.JobSweep(store, None, ENVIRONMENT, jobs=jobs, plan=plan, observer=observer)


def the_jobs(tmp_path, name="slurm"):
    return cluster.Jobs(name, tmp_path / "db.jobs", {})


def test_all_are_submitted_and_stored_as_they_come(executor, plan, tmp_path, monkeypatch):
    store, seen = Shelf(), []
    arrive = iter(("4000002", "4000000", "4000001"))
    monkeypatch.setattr(time, "sleep", lambda _s: executor.carry_out(next(arrive)))
    with the_jobs(tmp_path) as jobs:
        sweep = a_sweep(jobs, plan, store, seen)
        found = [sweep.measure(*each) for each in plan]
    assert [(each.case, each.status) for each in found] == [(case, "oom") for case, _ in plan]
    assert [each.case.workload.batch_size for each in store] == [3, 1, 2]
    assert seen == store
    assert not (tmp_path / "db.jobs").exists(), "nothing is left"


def test_what_is_stored_is_not_submitted(executor, plan, tmp_path, monkeypatch):
    store = Shelf()
    monkeypatch.setattr(time, "sleep", lambda _s: [*map(executor.carry_out, executor.submitted)])
    for _ in range(2):
        with the_jobs(tmp_path) as jobs:
            sweep = a_sweep(jobs, plan[:2], store)
            assert [sweep.measure(*each).status for each in plan[:2]] == ["oom"] * 2
    assert len(executor.submitted) == len(store) == 2


def test_here_one_runs_at_a_time(executor, plan, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    most = []

    def carry_out(_s):
        most.append(sum(Job.there.values()))
        executor.carry_out(next(each for each, there in Job.there.items() if there))

    monkeypatch.setattr(time, "sleep", carry_out)
    with the_jobs(tmp_path, "local") as jobs:
        sweep = a_sweep(jobs, plan, Shelf())
        for each in plan:
            sweep.measure(*each)
    assert most == [1, 1, 1]
    assert {request.visible for request, _ in executor.submitted.values()} == {("1",)}


def test_a_lost_job_is_a_case_that_crashed_and_is_measured_again(
    executor, plan, tmp_path, monkeypatch
):
    store = Shelf()
    monkeypatch.setattr(time, "sleep", lambda _s: Job.there.update(dict.fromkeys(Job.there, False)))
    with the_jobs(tmp_path) as jobs:
        lost = a_sweep(jobs, plan[:1], store).measure(*plan[0])
    assert (lost.status, lost.ended_by) == ("crashed", "outside")
    assert "slurm job 4000000 ended without a record: see " in lost.reason
    assert (tmp_path / "db.jobs" / "4000000_submitted.pkl").exists(), "for whoever looks why"
    monkeypatch.setattr(time, "sleep", lambda _s: executor.carry_out("4000001"))
    with the_jobs(tmp_path) as jobs:
        assert a_sweep(jobs, plan[:1], store).measure(*plan[0]).status == "oom"


def test_a_killed_sweep_goes_on_with_its_jobs(executor, plan, tmp_path, monkeypatch):
    class Kill(BaseException):
        pass

    def kill(_s):
        executor.carry_out("4000000")
        raise Kill

    monkeypatch.setattr(time, "sleep", kill)
    killed = the_jobs(tmp_path)  # Never left: what SIGKILL does.
    with pytest.raises(Kill):
        a_sweep(killed, plan, Shelf()).measure(*plan[0])
    store = Shelf()
    monkeypatch.setattr(
        time, "sleep", lambda _s: [executor.carry_out(each) for each in ("4000001", "4000002")]
    )
    with the_jobs(tmp_path) as jobs:
        sweep = a_sweep(jobs, plan, store)
        assert [sweep.measure(*each).status for each in plan] == ["oom"] * 3
    assert len(executor.submitted) == len(store) == 3, "each was measured once"


def test_ctrl_c_ends_the_jobs_and_keeps_what_came(executor, plan, tmp_path, monkeypatch):
    store = Shelf()

    def interrupt(_s):
        if store:
            raise KeyboardInterrupt
        executor.carry_out("4000000")

    monkeypatch.setattr(time, "sleep", interrupt)
    with the_jobs(tmp_path) as jobs:
        sweep = a_sweep(jobs, plan, store)
        sweep.measure(*plan[0])
        with pytest.raises(KeyboardInterrupt):
            sweep.measure(*plan[1])
    assert len(store) == 1
    assert not any(Job.there.values())


def test_a_record_that_is_none_is_a_failure(executor, plan, tmp_path, monkeypatch):
    store = Shelf()
    records = iter((cluster._Refused(refused="no such thing"), msgspec.structs.replace(PROTOCOL)))
    monkeypatch.setattr(
        time,
        "sleep",
        lambda _s: [executor.carry_out(n, next(records)) for n in ("4000000", "4000001")],
    )
    with the_jobs(tmp_path) as jobs:
        sweep = a_sweep(jobs, plan[:2], store)
        found = [sweep.measure(*each) for each in plan[:2]]
    assert [each.status for each in found] == ["crashed"] * 2
    assert found[0].reason == "no such thing"
    assert "expected a Measurement record" in found[1].reason


def test_a_refusal_is_one_line(executor, tmp_path):
    executor.refuses = "stderr:\nsbatch: error: invalid partition specified: nowhere\nmore"
    with the_jobs(tmp_path) as jobs, pytest.raises(PeakwardError) as said:
        cluster.machine(jobs, "cpu", Observer())
    assert str(said.value) == (
        "expected slurm to take a job, got sbatch: error: invalid partition specified: nowhere: "
        "see `--sbatch`"
    )


def test_a_job_tells_its_machine(executor, tmp_path, monkeypatch):
    def tell(_s):
        request, place = executor.submitted["4000000"]
        cluster.answer(codec.to_json(request), place)

    monkeypatch.setattr(time, "sleep", tell)
    with the_jobs(tmp_path) as jobs:
        assert cluster.machine(jobs, "cpu", Observer()).environment == ENVIRONMENT


def test_a_job_that_cannot_says_why(executor, tmp_path, monkeypatch):
    def tell(_s):
        request, place = executor.submitted["4000000"]
        cluster.answer(codec.to_json(msgspec.structs.replace(request, device="abacus")), place)

    monkeypatch.setattr(time, "sleep", tell)
    with the_jobs(tmp_path) as jobs, pytest.raises(PeakwardError, match="value of --device"):
        cluster.machine(jobs, "cpu", Observer())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--executor", "slurm"], "expected Slurm for --executor slurm, got no srun on the path"),
        (["--executor", "slrum"], "expected a value of --executor, got 'slrum': perhaps slurm"),
        (["--executor", "local", "--dry-run"], "expected --dry-run without --executor"),
        (["--executor", "local", "--sbatch", "qos=x"], "expected --sbatch with --executor slurm"),
        (["--sbatch", "qos=x"], "expected --sbatch with --executor slurm"),
        (["--executor", "slurm", "--sbatch", "wrap"], "as NAME=VALUE for --sbatch, got 'wrap'"),
        (["--executor", "slurm", "--sbatch", "a=b\nrm -rf"], "for --sbatch, got"),
    ],
)
def test_what_is_not_there_is_one_line(arguments, said, in_tmp, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(in_tmp))
    assert main(["bench", "--device", "cpu", *arguments]) == 2
    complaint = capsys.readouterr().err
    assert said in complaint
    assert len(complaint.splitlines()) == 1
    assert not list(in_tmp.iterdir()), "nothing is half-written"


def test_without_submitit_the_line_that_installs_it_is_named(in_tmp, monkeypatch, capsys):
    monkeypatch.setattr(cluster.importlib.util, "find_spec", lambda _name: None)
    assert main(["bench", "--device", "cpu", "--executor", "local"]) == 2
    assert "run `pip install 'peakward[slurm]'`" in capsys.readouterr().err
