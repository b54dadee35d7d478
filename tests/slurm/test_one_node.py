"""`peakward bench --executor slurm` against a real Slurm of one node, where its packages are installed:
`apt-get install slurm-wlm munge`, as root."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from peakward.records import codec
from peakward.records.study import Study
from peakward.store.database import Store

SCRIPT = Path(__file__).with_name("one_node.sh")
PATIENCE_S = 300.0
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        shutil.which("sbatch") is None or not Path("/usr/sbin/munged").exists() or os.getuid() != 0,
        reason="needs slurm-wlm and munge, and root",
    ),
]


@pytest.fixture(scope="module")
def environ(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slurm")
    try:
        subprocess.run([SCRIPT, "start", folder], check=True, timeout=60)
        yield os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
    finally:
        subprocess.run([SCRIPT, "stop", folder], check=True, timeout=60)


@pytest.fixture
def bench(environ, micro, tmp_path):
    def start(*options):
        grid = ("--pass", "forward", "--batch-size", "1,2", "--warmup", "0", "--steps", "2")
        return subprocess.Popen(
            [sys.executable, "-m", "peakward", "bench", "--executor", "slurm", *micro, *grid, *options],
            cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    return start


def test_cases_are_jobs_of_slurm(bench, tmp_path):
    said, err = (run := bench("--json", "--sbatch", "partition=main")).communicate(
        timeout=PATIENCE_S
    )
    assert run.returncode == 0, err
    assert [each.status for each in codec.from_json(said, Study).measurements] == ["ok", "ok"]
    assert b"2/2 cases are jobs of slurm" in err


def test_a_killed_sweep_resumes_and_measures_nothing_twice(bench, tmp_path):
    killed, db = bench(), tmp_path / "peakward.db"
    ends_s = time.monotonic() + PATIENCE_S
    while len(list((tmp_path / "peakward.db.jobs").glob("*.job"))) < 2:
        assert time.monotonic() < ends_s and killed.poll() is None
        time.sleep(0.1)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    said, err = (run := bench("--json")).communicate(timeout=PATIENCE_S)
    assert run.returncode == 0, err
    study = codec.from_json(said, Study)
    assert [each.status for each in study.measurements] == ["ok", "ok"]
    with Store.open_read_only(db) as store:
        assert store.measurement(*_planned(study), study.environment.key) is not None
    assert not list((tmp_path / "peakward.db.jobs").glob("*.json"))


def _planned(study):
    first = study.measurements[0]
    return first.case, first.protocol


def test_what_slurm_refuses_is_one_line(bench):
    _said, err = (run := bench("--sbatch", "partition=nowhere")).communicate(timeout=60)
    assert run.returncode == 2
    assert err.decode().splitlines() == [
        "peakward: expected slurm to take a job, got sbatch: error: invalid partition specified: nowhere: "
        "see `--sbatch`"
    ]
