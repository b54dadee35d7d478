"""torch lives under lab/ and kernels/ alone: shown by importing all else in a process that has none."""

import json
import subprocess
import sys

TORCH_FREE_ROOMS = (
    "records",
    "hardware",
    "models",
    "levers",
    "stats",
    "prediction",
    "diagnose",
    "traces",
    "store",
    "patches",
    "report",
)
LAZY_ROOMS = ("tune", "studies", "api", "cli")
"""They reach the lab, but only when a command needs it: their modules too load without torch."""

WITHOUT = """
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = name.partition(".")[0] in (
            "torch", "triton", "transformers", "huggingface_hub"
        )
        return None if hidden else PathFinder.find_spec(name, path, target)

import sys
sys.meta_path[sys.meta_path.index(PathFinder)] = Without
"""
"""As if those packages were not installed."""

IMPORT_ALL = """
import importlib, json, pkgutil
loaded = []
for room in sys.argv[1:]:
    package = importlib.import_module(f"peakward.{room}")
    names = [package.__name__]
    names += [each.name for each in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
    loaded += [importlib.import_module(name).__name__ for name in names]
print(json.dumps(loaded))
"""

COMMANDS = """
from pathlib import Path
from peakward.cli.main import main

Path("config.json").write_text('{"model_type": "llama", "num_hidden_layers": 2}')
for argv in (
    ["--help"], ["--version"], ["devices"], ["devices", "probe", "--device", "cpu"], ["study"],
    ["run", "--help"], ["bench", "--help"], ["study", "--help"], ["compare", "--help"],
    ["report", "--help"], ["devices", "--help"], ["plan"], ["plan", "--help"],
    ["plan", "--model", "./config.json"],
):
    assert main(argv) == 0, argv
assert main(["report", "--db", "none.db"]) == 2
assert main(["compare", "a", "b", "--db", "none.db"]) == 2
"""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
    )


def test_torch_is_hidden_indeed():
    done = run(WITHOUT + "import torch")
    assert "ModuleNotFoundError: No module named 'torch'" in done.stderr


def test_every_module_outside_the_lab_loads_where_torch_is_not_installed():
    done = run(WITHOUT + IMPORT_ALL, *TORCH_FREE_ROOMS, *LAZY_ROOMS)
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout)
    for room in (*TORCH_FREE_ROOMS, *LAZY_ROOMS):
        assert any(name.startswith(f"peakward.{room}.") for name in loaded), room


def test_commands_that_measure_nothing_work_where_torch_is_not_installed(in_tmp):
    done = run(WITHOUT + COMMANDS)
    assert done.returncode == 0, done.stderr


COMPUTING = """
from peakward.cli.main import main

assert main(["study", "scaling", "--html", "a.html"]) == 0
import peakward
study = peakward.study("scaling", db="b.db")
assert study.complete and study.tables and study.environment.torch is None
"""


def test_a_study_that_measures_nothing_runs_and_is_stored_where_torch_is_not_installed(in_tmp):
    done = run(WITHOUT + COMPUTING)
    assert done.returncode == 0, done.stderr
    assert {each.name for each in in_tmp.iterdir()} >= {"peakward.db", "b.db", "a.html"}


MEASURING = """
from peakward.cli.main import main

assert main(["devices", "probe"]) == 0
for argv in (["run"], ["bench"], ["study", "warmup"], ["study", "hierarchy"], ["devices", "calibrate"]):
    assert main(argv) == 2, argv
"""


def test_commands_that_measure_say_that_torch_is_not_installed(in_tmp):
    done = run(WITHOUT + MEASURING)
    assert done.returncode == 0, done.stderr
    line = "expected torch, without which nothing is measured, got none: run `pip install torch`"
    assert done.stderr == f"peakward: {line}\n" * 5
    assert list(in_tmp.iterdir()) == []


REFUSING = """
import sys

class Refusing:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, Refusing)
from peakward.cli.main import main
assert main(["bench"]) == 2
"""


def test_an_import_of_torch_that_fails_is_one_line(in_tmp):
    done = run(REFUSING)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("peakward: expected torch, ")
    assert done.stderr.count("\n") == 1


def test_help_loads_nothing_heavy():
    program = (
        "import sys; from peakward.cli.main import main; main(['--help']); "
        "heavy = {'torch', 'tyro', 'rich', 'msgspec', 'jinja2', 'sqlite3', 'pynvml'}; "
        "found = heavy & set(sys.modules); assert not found, found"
    )
    done = run(program)
    assert done.returncode == 0, done.stderr


def test_importing_peakward_loads_nothing_heavy():
    program = "import sys, peakward; assert not {'torch', 'tyro', 'rich'} & set(sys.modules)"
    done = run(program)
    assert done.returncode == 0, done.stderr
