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
from peakward.diagnose.rules import activations
from peakward.lab.numerics.verify import verify
from peakward.levers.catalogue import LEVERS, case_obstacle, lever, numerics_class, pull
from peakward.records.case import AS_WRITTEN, ModuleCase, StepCase

base = pw.case("tiny", batch_size=1, seq_len=16, device="cpu")
toy = lever("halved-gate")
assert toy in LEVERS
assert toy.name in activations.LEVERS  # Findings recommend it where it is predicted to help.
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

sizes = {"n_layers": 1, "d_model": 32, "d_ff": 64, "n_heads": 2, "n_kv_heads": 2, "head_dim": 16}
small = msgspec.structs.replace(base.model, vocab_size=64, **sizes)
base = msgspec.structs.replace(base, model=small)
case = pull(toy, base)
print(verify(base, case, numerics_class(toy, case)).verdict)

import inspect, toy_levers
right = inspect.getsource(toy_levers._function)
found = {}
exec(right.replace("activation(g) * u", "activation(g) * u * 1.01"), found)
toy_levers._function.__code__ = found["_function"].__code__
print(verify(base, case, numerics_class(toy, case)).verdict)
"""


WORK_PROGRAM = """
import sys
import msgspec, peakward as pw
from peakward.lab.levers.capture import capture
from peakward.levers.catalogue import lever, pull
from peakward.prediction.operators.op_graph import op_graph

sys.path[:0] = {folders!r}
from test_against_step import SHAPE, measured, predicted

for workload in ({{"pass_": "forward"}}, {{"batch_size": 2, "seq_len": 64}}):
    base = pw.case("tiny", **{{"batch_size": 1, "seq_len": 16, "device": "cpu", **workload}})
    case = pull(lever("halved-gate"), base)
    assert set(op_graph(case).operators) == set(capture(case).operators)
    assert op_graph(case) != op_graph(base)
wide = msgspec.structs.replace(SHAPE, d_ff=2048)
base = msgspec.structs.replace(base, model=wide)
case = pull(lever("halved-gate"), base)
print(predicted(case) / measured(case))
"""


def test_it_is_pulled_refused_and_verified_and_its_work_is_that_of_the_step(installed):
    """Its numbers are judged by what it declares, as any lever's, and those that it breaks are found. Its
    operators are as a capture sees them, its memory as torch's profiler does."""
    folders = [str(ROOT / "tests"), str(ROOT / "tests/unit/prediction/memory")]
    # In one process: it imports torch and its compiler, five seconds of a core.
    said = installed(WORK_PROGRAM.format(folders=folders) + PROGRAM)
    ratio, *verdicts = said.split()
    assert verdicts == ["holds", "violated"]
    assert float(ratio) == pytest.approx(1, rel=0.0015)


ON_A_GPU = [*WORK[:-2], "--device", "h100-sxm-80", "--json"]
SEARCH_PROGRAM = """
import peakward as pw
from peakward.levers.catalogue import lever, pull
from peakward.records.measurement import Environment
from peakward.tune.forecasts import Expectations
from peakward.tune.forecasts import Forecasts

here = Environment(
    device_type="cuda", device_name="NVIDIA H100 80GB HBM3", device_memory_bytes=80 * 2**30,
    n_cores=2, torch="2.11.0", python="3.11.7", system="Linux 6.1", peakward="0.1.0",
)
told = Expectations(Forecasts(here, None, lambda case: None), lambda case: None)
base = pw.case("llama-3-8b", batch_size=1, seq_len=2048, device="cuda")
found = told.foretold(base, pull(lever("halved-gate"), base))
assert found.absent == (), found.absent
print(found.time_ratio.estimate, told.bound(base, pull(lever("halved-gate"), base), 1.0).basis)
"""


def test_plan_and_the_search_predict_it(installed):
    """More launches and two more passes over the halves: slower."""
    (plan,) = json.loads(peakward(installed, "plan", *ON_A_GPU))["record"]["devices"]
    (change,) = [each for each in plan["changes"] if each["levers"] == ["halved-gate"]]
    assert change["speedup"]["estimate"] < 1
    assert change["needed_bytes"] is not None
    ratio, basis = installed(SEARCH_PROGRAM).split()[-2:]
    assert float(ratio) > 1
    assert basis == "floor"


def test_its_effect_is_not_predicted_before_it_describes_its_work(installed):
    toy = installed.site / "toy_levers.py"
    toy.write_text(toy.read_text().replace('"cuda": ("halves",)', ""))
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
