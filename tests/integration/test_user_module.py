"""A user's own module, from the command line to its report."""

import json
import subprocess
import sys

import pytest

from peakward.catalogue.levers import lever, pull
from peakward.cli.main import main
from peakward.lab.measure.isolated import Workers
from peakward.records.errors import PeakwardError


def peakward(*words, cwd):
    return subprocess.run(
        [sys.executable, "-m", "peakward", *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=180,
        cwd=cwd,
    )


@pytest.fixture
def here(capsys):
    """here(*words): the command in this process, which has torch: its code, what it said and complained."""

    def run(*words):
        code = main(list(words))
        return code, *capsys.readouterr()

    return run


SIZES = ("--batch-size", "2", "--seq-len", "16", "--device", "cpu")


def test_a_grid_of_modules_is_measured_and_found_again(at_user_modules, here):
    pytest.importorskip("transformers")
    models = ["py:tiny_gpt:build", "hf:llama"]
    words = (
        "bench",
        "--model",
        ",".join(models),
        "--pass",
        "forward",
        *SIZES,
        "--steps",
        "2",
    )
    done = peakward(*words, "--json", cwd=at_user_modules)
    assert done.returncode == 0, done.stderr
    study = json.loads(done.stdout)
    found = [(each["case"]["source"], each["status"]) for each in study["record"]["measurements"]]
    assert found == [(each, "ok") for each in models]
    _, planned, _ = here(*words, "--dry-run")
    assert planned.count("stored\n") == 2
    path = at_user_modules / "tiny_gpt.py"
    path.write_text(path.read_text() + "\n# changed")
    _, planned, _ = here(*words, "--dry-run")
    assert planned.count("stored\n") == 1


def test_a_run_names_what_cannot_be_done_from_outside(at_user_modules):
    words = ("run", "--model", "py:tiny_gpt:build", *SIZES, "--budget", "5s")
    done = peakward(*words, cwd=at_user_modules)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "py:tiny_gpt:build 2 × 16 train_step" in said
    assert "attention as written" in said
    assert "flash (attention flash is called by the module: call" in said
    assert "Floor and MFU: not computed" in said
    assert "FINDINGS" in done.stdout, "as far as its rules could judge"
    assert "Prediction of the baseline: not computed: steps on a CPU are not predicted" in said


@pytest.mark.parametrize("factory", ["raises", "growing"])
def test_bad_input_ends_with_code_2_and_one_line(factory, at_user_modules, here):
    code, said, complaint = here("bench", "--model", f"py:tiny_gpt:{factory}", *SIZES)
    assert (code, said) == (2, "")
    assert complaint.startswith("peakward: expected ")
    assert complaint.count("\n") == 1


def test_a_worker_captures_a_module_s_operators(make_module_case):
    case = make_module_case("py:tiny_gpt:build", pass_="train_step")
    with Workers() as workers:
        found = workers.capture(case)
        with pytest.raises(PeakwardError, match="compile default is not seen"):
            workers.capture(pull(lever("compile"), case))
    assert found.n_parameters > 0
    assert {each.phase for each in found.graph.operators} == {"forward", "backward", "optimizer"}
