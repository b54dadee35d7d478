"""`peakward bench` for real: a micro model, measured in a worker process."""

import json
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from threading import Thread

import pytest

from peakward.cli.main import main
from peakward.records import codec
from peakward.records.study import Study

QUICK = ("--warmup", "0", "--steps", "2")


@pytest.fixture
def bench(micro, in_tmp, handed_on, capsysbinary):
    """Runs a bench in this process and gives the study it printed."""

    def run(*options: str) -> Study:
        assert main(["bench", *micro, *QUICK, *options, "--json"]) == 0
        said = capsysbinary.readouterr()
        assert b"peakward:" not in said.err
        return codec.from_json(said.out, Study)

    return run


def test_a_grid_is_measured_once_and_taken_from_the_store_after(bench, in_tmp):
    first = bench("--pass", "forward,train_step", "--warmup", "0,1")
    assert first.complete
    assert [each.status for each in first.measurements] == ["ok"] * 4
    assert {each.protocol.warmup_steps for each in first.measurements} == {0, 1}
    assert all(each.summary.n == 2 for each in first.measurements)
    again = bench("--pass", "forward,train_step", "--warmup", "0,1")
    assert [each.id for each in again.measurements] == [each.id for each in first.measurements]
    assert main(["compare", first.id, again.id]) == 0
    assert main(["report", "last", "--html", "a.html", "--markdown", "a.md"]) == 0
    assert (in_tmp / "a.html").stat().st_size > 10_000


@pytest.mark.full  # test_workers has a real case that does not fit; tests/unit/studies its row.
def test_a_case_that_does_not_fit_keeps_its_row(bench):
    study = bench("--pass", "forward", "--memory-limit", "0.001,16")
    assert [each.status for each in study.measurements] == ["oom", "ok"]
    assert study.measurements[0].reason
    table = study.tables[-1]
    assert len(table.rows) == 2
    assert "oom" in table.rows[0]


def test_levers_reach_the_model(bench):
    study = bench("--lever", "sdpa,bf16", "--pass", "train_step")
    (measurement,) = study.measurements
    assert measurement.case.configuration.attention == "sdpa"
    assert measurement.case.configuration.precision == "bf16"
    assert measurement.status == "ok"
    assert measurement.n_parameters


TWICE = """
import sys
from peakward.lab.measure import process
from peakward.cli.main import main
process.TWICE_S = 1e9
sys.exit(main(sys.argv[1:]))
"""
"""The command, for which any two are as good as one soon after the other."""


def start(*options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", TWICE, "bench", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def n_ended_by(db: Path, who: str) -> int:
    """Stored measurements, as far as there are any yet."""
    query = "SELECT count(*) FROM measurement WHERE json_extract(record, '$.record.ended_by') = ?"
    try:
        with closing(sqlite3.connect(f"file:{db}?mode=ro", uri=True, timeout=30)) as connection:
            return int(connection.execute(query, (who,)).fetchone()[0])
    except sqlite3.OperationalError:  # no file, or no table
        return 0


def test_ctrl_c_twice_ends_with_what_was_measured(micro, in_tmp):
    """A Ctrl-C that finds its case done already ends none, but counts: two more cases show that it came."""
    lengths = ",".join(str(n) for n in range(1, 400))
    run = start(*micro, *QUICK, "--pass", "forward", "--batch-size", "1", "--seq-len", lengths)
    said: list[str] = []
    reader = Thread(target=lambda: said.extend(run.communicate()))
    reader.start()  # Progress would fill the pipe, and the run wait for a reader.
    db = in_tmp / "peakward.db"
    n_before = 0
    for n_more in (1, 2):
        while (
            run.poll() is None
            and n_ended_by(db, "case") < n_before + n_more
            and not n_ended_by(db, "user")
        ):
            time.sleep(0.02)
        n_before = n_ended_by(db, "case")
        run.send_signal(signal.SIGINT)
    reader.join()
    shown, complaint = said
    assert run.returncode == 130, complaint
    assert complaint.endswith(
        "peakward: interrupted; what was measured is stored, run the same command to resume\n"
    )
    assert "was interrupted" in shown


def test_a_second_run_on_one_database_is_turned_away(micro, in_tmp):
    grid = ("--batch-size", "1", "--seq-len", ",".join(str(n) for n in range(1, 400)))
    first = start(*micro, *QUICK, "--pass", "forward", *grid)
    try:
        while not (in_tmp / "peakward.db").exists() and first.poll() is None:
            time.sleep(0.02)
        second = start(*micro, *QUICK)
        said, complaint = second.communicate()
    finally:
        first.kill()
        first.communicate()
    assert (second.returncode, said) == (2, "")
    assert complaint.startswith("peakward: expected ")
    assert complaint.count("\n") == 1
    assert "--db" in complaint


def test_a_folder_that_cannot_hold_a_database_is_refused(micro, in_tmp, capsys):
    (in_tmp / "file").touch()
    for place in ("file/peakward.db", "no/such/folder/peakward.db", "."):
        assert main(["bench", *micro, *QUICK, "--db", place]) == 2
        assert capsys.readouterr().err.startswith("peakward: expected ")


def test_json_names_the_schema(bench, in_tmp, capsysbinary):
    bench("--pass", "forward")
    assert main(["report", "--json"]) == 0
    assert json.loads(capsysbinary.readouterr().out)["schema_version"] == codec.SCHEMA_VERSION
