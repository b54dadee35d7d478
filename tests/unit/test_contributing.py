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


@pytest.fixture(scope="module")
def examples():
    return dict(TITLED.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))


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
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            tmp_path,
            beside,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "3 passed" in done.stdout, done.stdout + done.stderr


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
