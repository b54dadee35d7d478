"""The sensors' process itself, and what it may read."""

import subprocess
import sys

import msgspec
import pynvml
import pytest

from peakward.lab.measure import sensors
from peakward.lab.measure.nvml import Gpu
from peakward.lab.measure.sensors import BEGIN, READY, Sample


def run(said, uuid="GPU-a"):
    return subprocess.run(
        [sys.executable, "-m", "peakward.lab.measure.sensors", uuid],
        input=said,
        capture_output=True,
        check=False,
    )


def test_a_closed_input_ends_it_with_what_it_has(fake_nvml):
    done = run(BEGIN)
    ready, newline, samples = done.stdout.partition(b"\n")
    assert ready + newline == READY
    assert msgspec.json.decode(samples, type=list[Sample]) == []
    assert done.returncode == 0


def test_an_input_that_closes_before_it_begins_ends_it(fake_nvml):
    done = run(b"")
    assert (done.returncode, done.stdout) == (0, READY)


def test_a_board_that_nvml_does_not_know_is_an_error(fake_nvml):
    done = run(BEGIN, "GPU-b")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"expected a GPU or MIG instance that NVML knows, got GPU-b" in done.stderr


def test_it_starts_without_torch():
    program = "import sys, peakward.lab.measure.telemetry; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"False\n"


def test_what_the_driver_refuses_is_absent(monkeypatch):
    def refuse(*_):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    for name in (
        "nvmlDeviceGetClockInfo",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
        "nvmlDeviceGetFieldValues",
    ):
        monkeypatch.setattr(pynvml, name, refuse)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", lambda board: 600_000)
    assert sensors.read_sample(Gpu("a", "a")) == Sample(None, pytest.approx(600.0), None, None)
