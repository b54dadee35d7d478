"""A sweep killed with SIGKILL at random moments and resumed: nothing lost, nothing twice."""

import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from peakward.store.database import Store

GRID = (
    *("--model", "tiny", "--n-layers", "1", "--d-model", "32", "--d-ff", "64", "--n-heads", "2"),
    *("--pass", "forward", "--device", "cpu", "--warmup", "0", "--steps", "2"),
)
PATIENCE_S = 600.0
"""Against a hang alone: on an idle machine a run is at its first case within three seconds."""


def start(db: Path, batches: int) -> subprocess.Popen[bytes]:
    sizes = ("--batch-size", ",".join(map(str, range(1, batches + 1))), "--seq-len", "4,6,8")
    return subprocess.Popen(
        [sys.executable, "-m", "peakward", "bench", *GRID, *sizes, "--db", str(db)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def stored(db: Path) -> dict[str, tuple[str, str]]:
    """Measurement id to what was measured, read beside a writer."""
    if not db.exists():
        return {}
    with closing(sqlite3.connect(f"file:{db}?mode=ro", uri=True, timeout=30)) as connection:
        try:
            rows = connection.execute("SELECT id, case_key, protocol_key FROM measurement")
            return {row[0]: (row[1], row[2]) for row in rows}
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):  # the writer has not laid its tables yet
                return {}
            raise


def kill_at_a_random_moment(db: Path, batches: int, chance: random.Random) -> dict[str, object]:
    """Run on, kill the process somewhere, and give what had been stored just before."""
    at_start, target = len(stored(db)), chance.randint(0, 3)
    run = start(db, batches)
    deadline_s = time.monotonic() + PATIENCE_S
    while len(stored(db)) < at_start + target and run.poll() is None:
        assert time.monotonic() < deadline_s, "nothing more was stored"
        time.sleep(0.01)
    # With no case to wait for, anywhere from the interpreter's start to the first cases.
    time.sleep(chance.uniform(0, 0.2 if target else 3.0))
    before = stored(db)
    run.send_signal(signal.SIGKILL)
    run.communicate()
    # On a machine that held us up the sweep may have ended by itself.
    assert run.returncode in (-signal.SIGKILL, 0)
    return dict(before)


@pytest.mark.parametrize(
    ("kills", "batches"), [(1, 4), pytest.param(30, 80, marks=pytest.mark.full)]
)
def test_a_killed_sweep_loses_only_the_case_in_flight(kills, batches, tmp_path):
    db, seed = tmp_path / "peakward.db", random.randrange(2**32)
    chance = random.Random(seed)
    seen: dict[str, object] = {}
    for kill in range(kills):
        before = kill_at_a_random_moment(db, batches, chance)
        after = stored(db)
        said = f"seed {seed}, kill {kill}"
        assert seen.keys() <= before.keys(), f"{said}: a case was lost over a resumption"
        assert before.keys() <= after.keys(), f"{said}: a case was lost to the kill"
        assert len(set(after.values())) == len(after), f"{said}: a case was measured twice"
        seen = dict(after)
    last = start(db, batches)
    _, complaint = last.communicate()
    assert last.returncode == 0, complaint.decode()
    final = stored(db)
    assert seen.keys() <= final.keys()
    assert len(final) == len(set(final.values())) == 3 * batches
    with Store.open_read_only(db) as store:
        study = store.study("last")
    assert study.complete
    assert {each.id for each in study.measurements} == final.keys()
    with closing(sqlite3.connect(db)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
