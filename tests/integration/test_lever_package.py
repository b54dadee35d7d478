"""A lever from outside the package: one file and an entry point, and Peakward does the rest."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def example(title: str) -> str:
    """A worked example of CONTRIBUTING.md, as it stands there."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return text.split(f'```python title="{title}"\n')[1].split("\n```\n")[0] + "\n"


WORK = ["--model", "tiny", "--n-layers", "1", "--d-model", "32", "--d-ff", "64", "--n-heads", "2"]
WORK += ["--batch-size", "1", "--seq-len", "16", "--device", "cpu"]


@pytest.fixture
def installed(tmp_path):
    """Installs the package as pip would leave it, and gives a Python that has it."""
    site = tmp_path / "site"
    metadata = site / "toy_levers-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "toy_levers.py").write_text(example("toy_levers.py"))
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-levers\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[peakward.levers]\ngate_order = toy_levers:AXIS\n")

    def python(program: str, *, code: int = 0) -> str:
        paths = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": paths, "COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done.stderr if code else done.stdout

    python.site = site
    return python


def peakward(installed, *arguments: str, code: int = 0) -> str:
    program = f"import sys; from peakward.cli.main import main; sys.exit(main({list(arguments)!r}))"
    return installed(program, code=code)


def test_it_is_an_option_with_its_help(installed):
    said = peakward(installed, "run", "--help")
    assert "--gate-order" in said
    assert "The gate's product at once, or in halves" in said


def test_it_is_measured_told_and_found_again(installed):
    """Through a worker process and the store."""
    said = peakward(installed, "bench", *WORK, "--gate-order", "whole,halves", "--json")
    study = json.loads(said)["record"]
    cases = [each["case"] for each in study["measurements"]]
    assert [each["status"] for each in study["measurements"]] == ["ok", "ok"]
    assert [each["configuration"]["more"] for each in cases] == [[], [["gate_order", "halves"]]]
    packages = study["measurements"][0]["environment"]["lever_packages"]
    assert packages == ["toy-levers 1.0"]
    shown = peakward(installed, "report")
    assert "halves gate" in shown


PROGRAM = """
import msgspec, peakward as pw
from peakward.api.reproduce import to_command
from peakward.lab.numerics.verify import verify
from peakward.levers.catalogue import LEVERS, case_obstacle, lever, numerics_class, pull
from peakward.records.case import AS_WRITTEN, ModuleCase, StepCase

base = pw.case("tiny", batch_size=1, seq_len=16, device="cpu")
toy = lever("halved-gate")
assert toy in LEVERS
case = pull(toy, base)
assert case == pw.case("tiny", batch_size=1, seq_len=16, device="cpu", levers=["halved-gate"])
assert case == pw.case("tiny", batch_size=1, seq_len=16, device="cpu", levers=["gate_order=halves"])
assert to_command(case).endswith("--gate-order halves --device cpu"), to_command(case)
def why(case):
    return case_obstacle(case, compute_capability=None, has_compiler=True)
assert why(case) is None
plain = msgspec.structs.replace(base.model, gated=False)
assert "needs a gated network" in why(msgspec.structs.replace(case, model=plain))
fused = msgspec.structs.replace(case.configuration, swiglu="fused")
rivals = why(msgspec.structs.replace(case, configuration=fused, device="cuda"))
assert "exclude each other: each replaces the gating" in rivals, rivals
module = ModuleCase(source="py:a:b", fingerprint="1", workload=base.workload, device="cpu")
assert "write it in halves there" in why(pull(toy, module))
step = StepCase(name="step", fingerprint="1", device="cpu")
assert "write it in halves there" in why(pull(toy, step))
verdict = verify(base, case, numerics_class(toy, case))
print(verdict.verdict)
"""


def test_it_is_pulled_refused_and_verified(installed):
    """Its numbers are judged by what it declares, as any lever's."""
    said = installed(PROGRAM)
    assert said.rstrip().endswith("holds")


def test_numbers_that_it_breaks_are_found(installed):
    toy = installed.site / "toy_levers.py"
    toy.write_text(toy.read_text().replace("activation(g) * u", "activation(g) * u * 1.01"))
    assert installed(PROGRAM).rstrip().endswith("violated")


def test_its_effect_is_not_predicted_before_it_describes_its_work(installed):
    said = peakward(
        installed, "plan", *WORK[:-2], "--gate-order", "halves", "--device", "h100-sxm-80"
    )
    assert "expected levers whose work is described, got gate_order halves" in said


def test_it_is_documented(installed):
    program = f"import sys; sys.path.insert(0, {str(ROOT / 'docs')!r}); import reference\n"
    said = installed(program + "print(reference.levers())")
    assert "`halved-gate`" in said
    assert "`--gate-order halves`" in said


@pytest.mark.full
def test_an_investigation_tries_it(installed):
    said = peakward(installed, "run", *WORK, "--lever", "halved-gate", "--budget", "10m", "--json")
    study = json.loads(said)["record"]
    assert [each["lever"] for each in study["trials"]] == ["halved-gate"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('name="gate_order"', 'name="budget"'), "got 'budget', which is an option: rename it"),
        (('name="halved-gate"', 'name="compile"'), "expected one lever named compile, got two"),
        (('"gate_order", "halves"', '"loss", "fused"'), "to set its axis gate_order"),
        (("AXIS = Axis(", "AXIS = dict("), "of the package toy-levers, got dict"),
        (("import Axis, CodeHint", "import Axes, CodeHint"), "toy-levers, got ImportError"),
    ],
)
def test_a_package_that_is_wrong_is_named_in_one_line(installed, change, says):
    toy = installed.site / "toy_levers.py"
    toy.write_text(toy.read_text().replace(*change))
    said = peakward(installed, "run", "--help", code=2)
    assert says in said
    assert "Traceback" not in said
