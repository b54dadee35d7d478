"""The worked examples of CONTRIBUTING.md, carried out as they stand there."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import peakward as pw
from peakward.hardware import devices

ROOT = Path(__file__).parents[2]
TITLED = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
CONFTEST = """
import peakward.diagnose.rules as rules
rules.__path__.append({folder!r})
"""
"""The example's rule is found as if it lay among the others."""


STUDIES_CONFTEST = """
import peakward.studies
from peakward.studies.registry import STUDIES, Entry

peakward.studies.__path__.append({folder!r})
STUDIES["batches"] = {entry}
"""
"""As if the example's study lay among the others, and its entry in their list."""


LISTED = """
from peakward.cli.main import main


def test_it_is_listed(capsys):
    assert main(["study"]) == 0
    assert "What does a larger batch gain in tokens/s?" in capsys.readouterr().out
"""


@pytest.fixture(scope="module")
def examples():
    return dict(TITLED.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))


def run_tests(root, folder):
    """What pytest says of a folder."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", root]
    done = subprocess.run([*command, folder], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_a_rule_is_one_file_and_its_test(examples, tmp_path):
    rule, test = "double_precision.py", "test_double_precision.py"
    ours, beside = tmp_path / "rules", tmp_path / "tests"
    ours.mkdir()
    beside.mkdir()
    (ours / rule).write_text(examples[f"src/peakward/diagnose/rules/{rule}"])
    (beside / test).write_text(examples[f"tests/unit/diagnose/rules/{test}"])
    (beside / "__init__.py").touch()
    shutil.copy(ROOT / "tests/unit/diagnose/rules/made.py", beside)
    (tmp_path / "conftest.py").write_text(CONFTEST.format(folder=str(ours)))
    assert "3 passed" in run_tests(tmp_path, beside)


def test_a_study_is_one_file_and_an_entry(examples, tmp_path):
    ours, beside = tmp_path / "studies", tmp_path / "tests"
    ours.mkdir()
    beside.mkdir()
    (ours / "batches.py").write_text(examples["src/peakward/studies/batches.py"])
    (beside / "test_batches.py").write_text(examples["tests/unit/studies/test_batches.py"])
    shutil.copy(ROOT / "tests/unit/studies/conftest.py", beside)
    entry = examples["an entry of STUDIES in src/peakward/studies/registry.py"]
    conftest = STUDIES_CONFTEST.format(folder=str(ours), entry=entry)
    (tmp_path / "conftest.py").write_text(conftest)
    (beside / "test_listed.py").write_text(LISTED)
    assert "3 passed" in run_tests(tmp_path, beside)


def test_a_device_is_a_table_and_its_source(examples, tmp_path, monkeypatch):
    text = (ROOT / "src/peakward/hardware/devices.toml").read_text(encoding="utf-8")
    source = examples["a line of [sources]"]
    text = text.replace("[sources]\n", f"[sources]\n{source}", 1)
    table = examples["src/peakward/hardware/devices.toml"]
    (tmp_path / "devices.toml").write_text(f"{text}\n{table}", encoding="utf-8")
    monkeypatch.setattr(devices, "files", lambda package: tmp_path)
    devices.devices.cache_clear()
    try:
        case = pw.case("tiny", batch_size=2, seq_len=128, device="cuda")
        forecast = pw.predict(case, "example-24")
        assert forecast.step_s is not None, forecast.absent
        assert devices.match("Example GPU 24GB", 24 * 2**30).key == "example-24"
    finally:
        devices.devices.cache_clear()
