"""`peakward run` for real: a micro model, from its command line to its report."""

import shlex

import pytest

from peakward.cli.main import main
from peakward.lab.measure import probe
from peakward.records import codec
from peakward.records.calibration import Calibration, MatmulRate
from peakward.records.plan import DryRun
from peakward.records.study import Study
from peakward.store.database import Store

pytestmark = pytest.mark.usefixtures("handed_on")


@pytest.fixture
def calibrated(in_tmp):
    """A database that knows this machine's ceilings, so that no test waits for them."""
    known = Calibration(
        environment=probe.environment("cpu"),
        started_at="2026-01-01T00:00:00+00:00",
        wall_s=1.0,
        matmul=tuple(
            MatmulRate(compute_type=name, size=512, flops_per_s=1e12) for name in ("fp32", "bf16")
        ),
        copy_bytes_per_s=1e11,
        copy_size_bytes=2**30,
    )
    with Store.open(in_tmp / "peakward.db") as store:
        store.add_calibration(known)
    return in_tmp


def run(capsysbinary, *options: str) -> Study:
    assert main(["run", *options, "--json"]) == 0
    said = capsysbinary.readouterr()
    assert b"peakward:" not in said.err
    return codec.from_json(said.out, Study)


def test_the_main_job_from_baseline_to_report(micro, calibrated, capsysbinary):
    study = run(capsysbinary, *micro, "--lever", "sdpa,checkpointing", "--budget", "4s")
    baseline = study.measurements[0]
    assert baseline.status == "ok"
    assert {each.phase for each in baseline.phases} == {"forward", "backward", "optimizer"}
    assert study.predictions[0].floor_s > 0
    assert study.command.startswith("peakward run --model tiny")
    assert study.best_command.startswith("peakward bench --model tiny --n-layers 1")
    # What the budget left undone is said, and said by the report too.
    assert study.complete == (not study.notes)
    assert main(["report", "--html", "a.html"]) == 0
    assert (calibrated / "a.html").stat().st_size > 10_000
    assert baseline.case.model.name in capsysbinary.readouterr().out.decode()


def test_the_best_command_measures_the_best_case(micro, calibrated, capsysbinary):
    """Of a model in a file as well, whose name alone does not find it."""
    folder = calibrated / "models" / "mine"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama", "vocab_size": 100}')
    options = (
        "--model",
        "models/mine",
        "--baseline",
        "sdpa",
        "--lever",
        "checkpointing",
        "--budget",
        "1s",
    )
    study = run(capsysbinary, *micro, *options)
    _, *words = shlex.split(study.best_command)
    assert main([*words, "--warmup", "0", "--steps", "1", "--json"]) == 0
    again = codec.from_json(capsysbinary.readouterr().out, Study)
    assert again.measurements[0].case == study.measurements[-1].case
    assert again.measurements[0].case.configuration.attention == "sdpa"


def test_a_dry_run_lists_what_would_run_and_runs_nothing(micro, calibrated, capsys):
    words = ["run", *micro, "--lever", "sdpa,compile", "--dry-run"]
    assert main([*words, "--json"]) == 0
    found = codec.from_json(capsys.readouterr().out.encode(), DryRun)
    steps = [each.what for each in found.steps]
    assert steps[0] == "measure the baseline"
    assert {"screen sdpa", "screen compile"} <= set(steps)
    assert "confirm the composition and each of its levers" in steps
    assert all(each.predicted_s is not None for each in found.steps)
    assert main([*words, "--markdown", "plan.md"]) == 0
    said = capsys.readouterr().out
    assert "in all; the budget ends it after about 1 min 40 s" in said
    assert "| screen sdpa |" in (calibrated / "plan.md").read_text()
    with Store.open_read_only(calibrated / "peakward.db") as store:
        assert store.studies() == ()


@pytest.mark.full
def test_a_lever_is_confirmed_in_pairs(micro, calibrated, capsysbinary):
    study = run(capsysbinary, *micro, "--baseline", "optimizer=adamw-loop", "--lever", "bf16")
    (trial, *_) = study.trials
    assert trial.lever == "bf16"
    assert trial.verdict in ("kept", "rejected", "inconclusive")
    assert trial.time_ratio is not None
