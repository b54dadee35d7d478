"""A writer killed at any moment loses at most the record in flight."""

import json
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

N_PLANNED = 300

WRITER = """
import sys
from pathlib import Path
from peakward.records.case import StepCase
from peakward.records.measurement import Environment
from peakward.records.measurement import Measurement, Run
from peakward.records.measurement import Protocol
from peakward.store.database import Store

path, round_, n_planned = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
here = Environment(device_type="cpu", device_name="A CPU", device_memory_bytes=1, n_cores=1,
                   python="3", system="Linux", peakward="0")
print("started", flush=True)
with Store.open(path) as store:
    for number in range(n_planned):
        case = StepCase(name=str(number), fingerprint="f", device="cpu")
        if store.measurement(case, Protocol(), here.key) is None:
            sys.stdin.readline()
            store.add_measurement(Measurement(
                id=f"{round_}-{number}", case=case, protocol=Protocol(), environment=here,
                started_at="2026-11-21T10:00:00+00:00", wall_s=1.0, status="ok",
                runs=(Run(warmup_s=(), steps_s=(0.125,) * 500),)))
            print(f"{round_}-{number}", flush=True)
print("done", flush=True)
"""


def write(path: Path, round_: int) -> "subprocess.Popen[str]":
    """A process that stores what is not stored yet, a record for each line it is given or all once its
    input ends, and prints each id once it is acknowledged."""
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(round_), str(N_PLANNED)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def kill_after(process: "subprocess.Popen[str]", n_lines: int, delay_s: float) -> list[str]:
    """Kill the writer a moment after so many lines; the ids that it had acknowledged by then."""
    assert process.stdin is not None and process.stdout is not None
    # Some more than are waited for, and never all, however long the machine holds us up.
    process.stdin.write("\n" * (n_lines + 3))
    process.stdin.flush()
    lines = [process.stdout.readline() for _ in range(n_lines)]
    time.sleep(delay_s)
    process.send_signal(signal.SIGKILL)
    rest, errors = process.communicate()
    assert errors == ""
    words = "".join(lines) + rest
    # A line cut short by the kill was not acknowledged in full.
    whole = words[: words.rfind("\n") + 1].split()
    return [word for word in whole if word not in ("started", "done")]


def stored(path: Path) -> dict[str, str]:
    """The case of each stored id, from a copy: looking must not repair what the next writer meets."""
    with TemporaryDirectory() as name:
        copy = Path(shutil.copytree(path.parent, name, dirs_exist_ok=True)) / path.name
        if not copy.exists():
            return {}
        with closing(sqlite3.connect(copy)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            (laid,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            rows = (
                connection.execute("SELECT id, record FROM measurement").fetchall() if laid else []
            )
    return {id_: json.loads(record)["record"]["case"]["name"] for id_, record in rows}


def check_kills(path: Path, n_kills: int, seed: int) -> None:
    draw = random.Random(seed)
    acknowledged: set[str] = set()
    for round_ in range(n_kills):
        # The first line comes before the database is opened, so that some kills hit its creation,
        # its recovery after the last kill, or the empty file.
        n_lines = draw.choice([1, draw.randrange(2, 3 + 2 * N_PLANNED // (3 * n_kills))])
        process = write(path, round_)
        acknowledged.update(kill_after(process, n_lines, draw.uniform(0, 0.01)))
        found = stored(path)
        assert acknowledged <= set(found)
        assert len(found) <= len(acknowledged) + round_ + 1, "more than one in flight a kill"
        assert len(set(found.values())) == len(found)
    last, errors = write(path, n_kills).communicate()
    assert errors == ""
    assert last.endswith("done\n")
    found = stored(path)
    assert acknowledged <= set(found)
    assert sorted(map(int, found.values())) == list(range(N_PLANNED))
    assert len({id_.split("-")[0] for id_ in found}) > 1, "no kill came between two records"


def test_three_kills_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    check_kills(tmp_path / "peakward.db", n_kills=3, seed=1)


@pytest.mark.full
def test_thirty_kills_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    check_kills(tmp_path / "peakward.db", n_kills=30, seed=2)
