"""Steps held to stored baselines."""

import importlib.util

import msgspec
import pytest
import torch

from peakward.api import gate
from peakward.api.session import NO_TORCH
from peakward.cli.main import main
from peakward.records.case import StepCase
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Environment, Interval, Measurement, Protocol, Summary

HERE = Environment(
    device_type="cpu",
    device_name="Example CPU",
    device_memory_bytes=2**34,
    n_cores=2,
    python="3.11.7",
    system="Linux 6.1",
    peakward="0.1.0",
)
BRIEF = Protocol(warmup_steps=1, min_steps=5, max_steps=5, max_timed_s=0.1, phases=False)


def measurement(name, median_s=1.0, *, code="f", **fields):
    median = Interval(estimate=median_s, low=median_s, high=median_s)
    return Measurement(
        id=name,
        case=StepCase(name=name, fingerprint=code, device="cpu"),
        protocol=Protocol(phases=False),
        started_at="2026-11-22T00:00:00+00:00",
        wall_s=1.0,
        status="ok",
        summary=Summary(median_s=median, mean_s=median_s, sd_s=0.0, min_s=median_s, n=50),
        **{"environment": HERE} | fields,
    )


def names(path):
    return [each.case.name for each in gate.read(path).measurements]


def test_a_real_step_is_measured_kept_and_read_by_the_command_line(in_tmp, capsys):
    weight = torch.ones(8, 8)
    now = gate.measured(lambda: weight @ weight, name="product", protocol=BRIEF)
    path = in_tmp / "speed.json"
    gate.keep(path, now)
    found = gate.judged(path, now, threshold=0.03, across=False)
    assert found.ratio.estimate == 1.0
    assert main(["report", "speed.json"]) == 0
    assert "Baseline of a test suite" in capsys.readouterr().out


def test_a_step_that_raises_is_no_measurement():
    def broken():
        raise ValueError("no such thing")

    with pytest.raises(PeakwardError, match=r"expected a step that runs, got crashed: .*no such"):
        gate.measured(broken, name="broken", protocol=BRIEF)


def test_without_torch_the_install_line_is_given(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PeakwardError) as refused:
        gate.measured(lambda: None, name="any")
    assert str(refused.value) == NO_TORCH


def test_one_file_holds_the_steps_of_one_environment(tmp_path):
    path = tmp_path / "speed.json"
    gate.keep(path, measurement("a"))
    gate.keep(path, measurement("b"))
    gate.keep(path, measurement("a", 2.0))
    assert names(path) == ["b", "a"]
    elsewhere = msgspec.structs.replace(HERE, n_cores=64)
    gate.keep(path, measurement("c", environment=elsewhere))
    assert names(path) == ["c"]


def test_a_baseline_that_cannot_be_written_is_one_line(tmp_path):
    with pytest.raises(
        PeakwardError, match=r"expected to write .*none/speed\.json, got: No such file"
    ):
        gate.keep(tmp_path / "none" / "speed.json", measurement("a"))


def test_a_baseline_that_is_a_link_stays_one_and_nothing_lies_beside_it(tmp_path):
    (link := tmp_path / "speed.json").symlink_to(kept := tmp_path / "kept.json")
    gate.keep(link, measurement("a"))
    assert link.is_symlink()
    assert names(kept) == ["a"]
    assert set(tmp_path.iterdir()) == {link, kept}


def test_another_name_and_a_broken_file_are_refused(tmp_path):
    path = tmp_path / "speed.json"
    gate.keep(path, measurement("a"))
    with pytest.raises(PeakwardError, match="expected a baseline named 'b'"):
        gate.judged(path, measurement("b"), threshold=0.03, across=False)
    path.write_text("{")
    with pytest.raises(PeakwardError, match=r"speed\.json: expected a Study record"):
        gate.judged(path, measurement("a"), threshold=0.03, across=False)


def test_a_verdict_is_said_with_its_numbers(tmp_path):
    path = tmp_path / "speed.json"
    gate.keep(path, measurement("a"))
    found = gate.judged(path, measurement("a", 1.5), threshold=0.03, across=False)
    assert gate.said(found, path).endswith("1 s → 1.5 s, 1.500× (1.500–1.500×)")


def test_two_such_files_are_compared_by_name_whatever_the_code_became(in_tmp, capsys):
    for file, median_s, code in (("base.json", 1.0, "old"), ("head.json", 1.5, "new")):
        gate.keep(in_tmp / file, measurement("a", median_s, code=code))
    assert main(["compare", "base.json", "head.json"]) == 1
    assert "1 regression. 1 case compared: 1 slower." in capsys.readouterr().out
    assert main(["compare", "head.json", "base.json"]) == 0
    assert "No regression. 1 case compared: 1 faster." in capsys.readouterr().out
