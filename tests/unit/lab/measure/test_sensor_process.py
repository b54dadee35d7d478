"""The sensors' process seen from its parent: it samples, or gives nothing, and never outlives it."""

import os
import signal
import subprocess
import sys

import pytest

from peakward.lab.measure import sensor_process
from peakward.lab.measure.sensor_process import SensorProcess
from peakward.lab.measure.sensors import Sample

READING = Sample(1980.0, 500.25, 40.0, 0x4)


def test_it_samples_from_begin_to_end(fake_nvml):
    process = SensorProcess("GPU-a")
    process.begin()
    fake_nvml.wait_for_readings(4)
    found = process.end()
    assert len(found) >= 2
    assert set(found) == {READING}


def test_it_ends_once(fake_nvml):
    process = SensorProcess("GPU-a")
    process.begin()
    fake_nvml.wait_for_readings(3)
    assert process.end()
    assert process.end() == []


def test_until_begun_it_does_not_sample(fake_nvml):
    process = SensorProcess("GPU-a")
    fake_nvml.wait_for_readings(1)
    assert process.end() == []


def test_ctrl_c_is_not_for_it(fake_nvml):
    process = SensorProcess("GPU-a")
    process.begin()
    os.kill(process.pid, signal.SIGINT)
    fake_nvml.wait_for_readings(4)
    assert process.end()


def test_it_ends_though_something_else_holds_its_input_open(fake_nvml):
    process = SensorProcess("GPU-a")
    held = os.dup(process._process.stdin.fileno())  # as what the parent forked would
    process.begin()
    fake_nvml.wait_for_readings(3)
    assert process.end()
    os.close(held)


def test_one_that_is_let_go_ends(fake_nvml, wait_until_dead):
    process = SensorProcess("GPU-a")
    pid = process.pid
    del process
    wait_until_dead(pid)


@pytest.mark.parametrize("begun", [True, False])
def test_it_dies_with_a_parent_that_is_killed(fake_nvml, wait_until_dead, begun):
    parent = (
        "import os, signal\n"
        "from peakward.lab.measure.sensor_process import SensorProcess\n"
        "process = SensorProcess('GPU-a')\n"
        f"if {begun}: process.begin()\n"
        "print(process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", parent], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL
    wait_until_dead(int(done.stdout))


def test_a_board_that_is_not_there_gives_nothing(fake_nvml):
    process = SensorProcess("GPU-b")
    process.begin()
    assert process.end() == []


@pytest.mark.parametrize("fault", ["crash", "babble", "stall"])
def test_one_that_fails_while_sampling_gives_nothing(
    fake_nvml, monkeypatch, wait_until_dead, fault
):
    monkeypatch.setattr(sensor_process, "END_WAIT_S", 0.2)
    fake_nvml.fail(fault)
    process = SensorProcess("GPU-a")
    process.begin()
    fake_nvml.wait_for_readings(3)
    assert process.end() == []
    wait_until_dead(process.pid)


@pytest.mark.parametrize("fault", ["hang", "chatter"])
def test_one_that_is_not_ready_is_killed(fake_nvml, monkeypatch, wait_until_dead, fault):
    monkeypatch.setattr(sensor_process, "READY_WAIT_S", 0.2)
    fake_nvml.fail(fault)
    process = SensorProcess("GPU-a")
    process.begin()
    wait_until_dead(process.pid)
    assert process.end() == []


def test_it_prints_nothing_of_its_own(fake_nvml, capfd):
    process = SensorProcess("GPU-b")  # it ends with a traceback
    process.begin()
    process.end()
    assert capfd.readouterr() == ("", "")
