"""The fixture, in test sessions of its own. Times are given, never taken."""

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest

from peakward.api import gate
from peakward.records.case import StepCase
from peakward.records.measurement import Environment, Interval, Measurement, Protocol, Summary

pytest_plugins = ["pytester"]

HERE = Environment(
    device_type="cpu",
    device_name="Example CPU",
    device_memory_bytes=2**34,
    n_cores=2,
    torch="2.13.0",
    python="3.11.7",
    system="Linux 6.1",
    peakward="0.1.0",
)


def measurement(median_s, *, name="step", width=0.01, fingerprint="f", **fields):
    low, high = median_s * (1 - width), median_s * (1 + width)
    median = Interval(estimate=median_s, low=low, high=high)
    plain = {"environment": HERE, "status": "ok"}
    return Measurement(
        id=f"{name}-{median_s}",
        case=StepCase(name=name, fingerprint=fingerprint, device="cpu"),
        protocol=Protocol(phases=False),
        started_at="2026-11-22T00:00:00+00:00",
        wall_s=1.0,
        summary=Summary(median_s=median, mean_s=median_s, sd_s=0.0, min_s=median_s, n=50),
        **plain | fields,
    )


@pytest.fixture
def session(pytester, monkeypatch):
    """session(measurements, *words): a test with the fixture, whose step has these in turn."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    # Where Peakward is installed pytest would load the plugin a second time.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\n")

    def run(given, *words, call="baseline='speed.json'"):
        left = list(given)
        monkeypatch.setattr(gate, "measured", lambda step, name, **settings: left.pop(0))
        pytester.makepyfile(
            f"def test_speed(peakward_gate):\n"
            f"    peakward_gate(lambda: None, name='step', {call})\n"
        )
        found = pytester.runpytest_inprocess("-p", "peakward.pytest_plugin", *words)
        assert left == [], "all that was given was measured"
        return found

    return run


@pytest.fixture
def baseline(pytester):
    path = pytester.path / "speed.json"
    gate.keep(path, measurement(1.0, fingerprint="the code before"))
    return path


def test_a_step_as_fast_as_its_baseline_passes_although_its_code_changed(session, baseline):
    session([measurement(1.01)]).assert_outcomes(passed=1)


def test_a_slower_step_is_measured_again_and_fails_with_its_numbers(session, baseline):
    found = session([measurement(1.2), measurement(1.2)])
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(["*step: slower against *speed.json: 1 s → 1.2 s, 1.200× (1.1*"])


def test_what_is_slower_once_passes(session, baseline):
    session([measurement(1.2), measurement(1.01)]).assert_outcomes(passed=1)


def test_what_cannot_be_told_passes_with_a_warning(session, baseline):
    found = session([measurement(1.1, width=0.2)])
    found.assert_outcomes(passed=1)
    found.stdout.fnmatch_lines(["*PytestWarning: step: inconclusive against *speed.json*"])


def test_the_threshold_is_the_tests(session, baseline):
    call = "baseline='speed.json', threshold=0.5"
    session([measurement(1.2)], call=call).assert_outcomes(passed=1)


def test_a_threshold_that_would_let_anything_pass_is_refused_before_the_step_runs(
    session, baseline
):
    found = session([], call="baseline='speed.json', threshold=3")
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(["*expected a share from 0 to below 1 for threshold, got 3*"])


def test_without_a_baseline_it_fails_before_it_measures_and_says_what_stores_one(session):
    found = session([])
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(["*pytest --peakward-update*"])


def test_a_baseline_of_another_machine_is_refused_unless_asked_for(session, pytester):
    other = msgspec.structs.replace(HERE, n_cores=64)
    gate.keep(pytester.path / "speed.json", measurement(1.0, environment=other))
    found = session([measurement(1.0)])
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(["*n_cores: 64, then 2*"])
    across = "baseline='speed.json', across=True"
    session([measurement(1.0)], call=across).assert_outcomes(passed=1)


def test_an_update_stores_and_judges_nothing(session, baseline):
    session([measurement(9.0)], "--peakward-update").assert_outcomes(passed=1)
    (stored,) = gate.read(baseline).measurements
    assert stored.summary.median_s.estimate == 9.0


def test_an_installed_peakward_brings_the_fixture():
    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    (module,) = declared["project"]["entry-points"]["pytest11"].values()
    assert hasattr(importlib.import_module(module), "peakward_gate")


def test_a_session_that_does_not_ask_loads_nothing_of_ours():
    program = (
        "import sys, peakward.pytest_plugin;"
        "print([name for name in sys.modules if name.startswith(('peakward.', 'torch', 'numpy'))])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert shown.stdout.strip() == "['peakward.pytest_plugin']", shown.stderr
