"""`--json` of every command: one JSON document on stdout, and errors on stderr."""

import json
from pathlib import Path

import pytest

from gguf_files import small_model
from peakward.cli.main import COMMANDS, main
from peakward.lab.measure import probe
from peakward.lab.measure.isolated import Workers
from peakward.records.calibration import Calibration, MatmulRate, Rates
from peakward.store.database import Store
from peakward.studies import registry

pytestmark = pytest.mark.usefixtures("handed_on")

DATA = Path(__file__).parents[1] / "data"
TRACE, OTHER_TRACE = (
    str(DATA / "traces" / f"h200_decoder_{name}.json.gz") for name in ("compiled", "cuda_graphs")
)
SNAPSHOT = str(DATA / "snapshots" / "graph.pickle.gz")
QUICK = ("--pass", "forward", "--steps", "2", "--warmup", "0")

VARIANTS = {
    "bench": [("--dry-run",), QUICK, (*QUICK, "--dry-run")],
    "compare": [("peakward.db", "peakward.db")],
    "run": [("--dry-run",), ("--budget", "1s", "--lever", "sdpa")],
    "study": [(), ("scaling",), ("--all",)],
    "debug": [("--n-steps", "2")],
    "generate": [("--model", "small.gguf", "--prompt", "hello", "--max-new-tokens", "8")],
    "devices": [(), ("--sources",), ("probe",), ("calibrate", "--device", "cpu")],
    "trace": [
        (TRACE,),
        (TRACE, "--kernels"),
        (TRACE, "--phase", "forward"),
        (TRACE, OTHER_TRACE),
    ],
    "memory": [(SNAPSHOT,), (SNAPSHOT, "--all")],
    "plan": [(), ("--operators",), ("--output-len", "16", "--model", "llama-3-8b")],
    "report": [(), ("--list",), ("--ledger",)],
}
"""In this order: the later ones show what the earlier ones stored."""


@pytest.fixture
def calibration(in_tmp, monkeypatch):
    """What takes half a minute to measure, by hand: stored, and given to whoever asks."""
    ceilings = Calibration(
        environment=probe.environment("cpu"),
        started_at="2026-01-01T00:00:00+00:00",
        wall_s=1.0,
        matmul=(MatmulRate(compute_type="fp32", size=512, flops_per_s=1e12),),
        copy_bytes_per_s=1e11,
        copy_size_bytes=2**30,
    )
    monkeypatch.setattr(Workers, "calibrate", lambda *_: ceilings)
    monkeypatch.setattr(Workers, "rates", lambda *_: Rates())
    small_model(in_tmp / "small.gguf")
    with Store.open(in_tmp / "peakward.db") as store:
        store.add_calibration(ceilings)


def test_every_command_is_here():
    assert set(VARIANTS) == set(COMMANDS)


def test_every_command_prints_one_document(calibration, micro, monkeypatch, capsys):
    one = {"scaling": registry.STUDIES["scaling"]}
    for command, variants in VARIANTS.items():
        for words in variants:
            if words == ("--all",):
                monkeypatch.setattr(registry, "STUDIES", one)
            size = micro if command in ("bench", "debug", "run") else ()
            line = [command, *size, *words, "--json"]
            assert main(line) == 0, line
            said = capsys.readouterr()
            assert json.loads(said.out), line
            assert "peakward:" not in said.err, (line, said.err)  # progress alone


@pytest.mark.parametrize("command", COMMANDS)
def test_an_error_leaves_stdout_empty(command, in_tmp, capsys):
    assert main([command, "--json", "--no-such-option"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
