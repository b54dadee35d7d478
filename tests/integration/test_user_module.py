"""A user's own module, from the command line to its report."""

import json
import subprocess
import sys

import pytest

from peakward.cli.main import main
from peakward.lab.measure.isolated import Workers
from peakward.levers.catalogue import lever, pull
from peakward.records.errors import PeakwardError
from tiers import in_full


def peakward(*words, cwd):
    return subprocess.run(
        [sys.executable, "-m", "peakward", *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=1800,  # against a hang alone
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


@pytest.mark.parametrize("other", ["py:tiny_gpt:another", *in_full(["hf:llama"])])
def test_a_grid_of_modules_is_measured_and_found_again(other, at_user_modules, here):
    if other.startswith("hf:"):
        pytest.importorskip("transformers")
    path = at_user_modules / "tiny_gpt.py"
    path.write_text(path.read_text() + "\nanother = build\n")
    models = ["py:tiny_gpt:build", other]
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
    code, said, complaint = here(*words, "--json")
    assert code == 0, complaint
    study = json.loads(said)
    found = [(each["case"]["source"], each["status"]) for each in study["record"]["measurements"]]
    assert found == [(each, "ok") for each in models]
    _, planned, _ = here(*words, "--dry-run")
    assert "2 measurements, 2 of them stored already" in planned
    path.write_text(path.read_text() + "\n# changed")
    _, planned, _ = here(*words, "--dry-run")
    left = sum(each.startswith("hf:") for each in models)
    assert f"2 measurements, {left} of them stored already" in planned


@pytest.mark.full
def test_a_run_names_what_cannot_be_done_from_outside(at_user_modules):
    words = ("run", "--model", "py:tiny_gpt:build", *SIZES, "--budget", "60s", "--lever", "sdpa")
    done = peakward(*words, cwd=at_user_modules)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "py:tiny_gpt:build 2 × 16 train_step" in said
    assert "attention as written" in said
    assert "it calls scaled_dot_product_attention already" in said
    assert "Floor and MFU: not computed" in said
    assert "FINDINGS" in done.stdout, "as far as its rules could judge"
    assert "Prediction of the baseline: not computed: steps on a CPU are not predicted" in said


@pytest.mark.full
def test_a_run_starts_from_a_module_that_comes_compiled(at_user_modules):
    words = ("run", "--model", "py:tiny_gpt:compiled_by_blocks", *SIZES, "--budget", "60s")
    done = peakward(*words, "--lever", "fused-optimizer", cwd=at_user_modules)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "The module came compiled by blocks: the baseline is compiled so too" in said
    assert "--compile default" in said, "what measures the baseline again"


WRONG = """
import os, time
import torch
from tiny_gpt import *

def hangs():
    time.sleep(600)

def closes_all():
    os.closerange(0, 1 << 16)
    return GPT()

def babbles():
    model = GPT()
    for each in map(int, os.listdir("/proc/self/fd")):
        try:
            os.write(each, b"{}")
        except OSError:
            pass
    return model

class Late(GPT):
    def forward(self, ids):
        raise ValueError("not this batch")
"""


FOUND = {
    "Late": ("invalid", "ValueError: not this batch"),
    "closes_all": ("crashed", "exited with code "),
    "babbles": ("crashed", "wrote what is no answer into the pipe"),
    "build": ("ok", None),
}


@pytest.mark.parametrize("names", [("babbles", "build"), *in_full([tuple(FOUND)])])
def test_a_module_that_fails_in_its_check_is_a_row_and_the_others_are_measured(
    names, at_user_modules, here
):
    (at_user_modules / "wrong.py").write_text(WRONG)
    expected = {name: FOUND[name] for name in names}
    models = ",".join(f"py:wrong:{name}" for name in expected)
    words = ("bench", "--model", models, *SIZES, "--pass", "forward", "--steps", "2")
    code, said, complaint = here(*words, "--json")
    assert code == 0, complaint
    found = json.loads(said)["record"]["measurements"]
    for (name, (status, reason)), made in zip(expected.items(), found, strict=True):
        assert (name, made["status"]) == (name, status)
        assert reason is None or reason in made["reason"]
    _, planned, _ = here(*words, "--dry-run")
    assert f"{len(expected)} measurements, {len(expected)} of them stored already" in planned


@pytest.mark.full
def test_the_time_limit_of_a_case_holds_for_the_check_of_its_module(at_user_modules, here):
    (at_user_modules / "wrong.py").write_text(WRONG)
    words = ("bench", "--model", "py:wrong:hangs", *SIZES, "--timeout", "1s")
    code, said, complaint = here(*words, "--json")
    assert code == 0, complaint
    (made,) = json.loads(said)["record"]["measurements"]
    assert made["status"] == "timeout"
    assert made["reason"].startswith("not done after 1 s, while ")


def test_a_source_that_is_not_there_ends_with_code_2_before_anything_is_measured(
    at_user_modules, here
):
    models = "py:tiny_gpt:biuld,py:tiny_gpt:build"
    code, said, complaint = here("bench", "--model", models, *SIZES)
    assert (code, said) == (2, "")
    assert complaint == (
        "peakward: expected a function biuld in tiny_gpt, got nothing by that name\n"
    )


@pytest.mark.parametrize("factory", ["growing", *in_full(["raises"])])
def test_bad_input_ends_a_run_with_code_2_and_one_line(factory, at_user_modules, here):
    code, said, complaint = here("run", "--model", f"py:tiny_gpt:{factory}", *SIZES)
    assert (code, said) == (2, "")
    # Above it a line a stage.
    (line,) = [each for each in complaint.splitlines() if each.startswith("peakward: ")]
    assert line.startswith("peakward: expected ")
    assert complaint.endswith(f"{line}\n")


@pytest.mark.full
def test_a_worker_captures_a_module_s_operators(make_module_case):
    case = make_module_case("py:tiny_gpt:build", pass_="train_step")
    with Workers() as workers:
        found = workers.capture(case)
        with pytest.raises(PeakwardError, match="cuda-graphs on is not seen"):
            workers.capture(pull(lever("cuda-graphs"), case))
    assert found.n_parameters > 0
    assert {each.phase for each in found.graph.operators} == {"forward", "backward", "optimizer"}
