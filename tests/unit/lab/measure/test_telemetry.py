"""The device's sensors, summed up."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from peakward.lab.measure import telemetry
from peakward.lab.measure.nvml import Gpu
from peakward.lab.measure.sensors import Sample
from peakward.lab.measure.telemetry import Sampler, SensorProcess, reason_names, summarise_samples
from peakward.records.measurement import Interval, Telemetry
from peakward.stats.validity import POWER_CAP, SLOWDOWNS


def test_samples_become_means_and_extremes():
    samples = [Sample(1900.0, 600.0, 60.0, 0x0), Sample(1700.0, 700.0, 64.0, 0x4)]
    found = summarise_samples(samples, 1000.0, 4)
    assert found.sm_clock_mhz == Interval(estimate=1800.0, low=1700.0, high=1900.0, level=1.0)
    assert found.power_w == Interval(estimate=650.0, low=600.0, high=700.0, level=1.0)
    assert found.temperature_c == Interval(estimate=62.0, low=60.0, high=64.0, level=1.0)
    assert found.energy_per_step_j == 250.0
    assert found.throttle_reasons == ("sw_power_cap",)
    assert found.n_samples == 2


def test_what_a_device_does_not_tell_is_absent():
    found = summarise_samples([Sample(None, None, 60.0, None)], None, 4)
    assert found.sm_clock_mhz is None
    assert found.power_w is None
    assert found.energy_per_step_j is None
    assert found.throttle_reasons == ()
    assert summarise_samples([], None, 0).temperature_c is None


@pytest.mark.parametrize(
    ("bits", "names"),
    [
        (0x0, ()),
        (0x1, ()),  # idle
        (0x28, ("hw_slowdown", "sw_thermal_slowdown")),
        (0x401, ("reason_0x400",)),
    ],
)
def test_reason_names(bits, names):
    assert reason_names(bits) == names


def test_the_names_are_those_that_the_verdict_knows():
    assert {POWER_CAP, *SLOWDOWNS} <= set(telemetry.THROTTLE_REASONS.values())


def test_without_a_gpu_there_is_no_telemetry():
    with Sampler(None) as sampler:
        pass
    assert sampler.telemetry(10) is None


@pytest.fixture
def gpu(monkeypatch, fake_nvml):
    """A board that this process knows by name alone, and the sensors' process by a driver."""
    monkeypatch.setattr(telemetry.nvml, "uuid", lambda gpu: f"GPU-{gpu.handle}")
    monkeypatch.setattr(telemetry, "read_energy_j", lambda gpu: None)
    return Gpu("a", "a")


def test_the_driver_counts_millijoules(monkeypatch):
    gpu = Gpu("a", "a")
    monkeypatch.setattr(telemetry.nvml, "query", lambda asked, board: 1_234_567)
    assert telemetry.read_energy_j(gpu) == pytest.approx(1234.567)
    monkeypatch.setattr(telemetry.nvml, "query", lambda asked, board: None)
    assert telemetry.read_energy_j(gpu) is None


@pytest.mark.parametrize(("region_s", "energy_j"), [(0.6, 5.0), (0.4, None)])
def test_energy_is_the_counter_s_difference_over_a_long_region(
    monkeypatch, gpu, region_s, energy_j
):
    counter, clock = iter([100.0, 150.0]), iter([7.0, 7.0 + region_s])
    monkeypatch.setattr(telemetry, "read_energy_j", lambda gpu: next(counter))
    monkeypatch.setattr(telemetry, "perf_counter", lambda: next(clock))
    with Sampler(gpu) as sampler:
        pass
    assert sampler.telemetry(10).energy_per_step_j == energy_j


def test_the_block_is_sampled_without_a_thread(gpu, fake_nvml):
    n_threads = threading.active_count()
    with Sampler(gpu) as sampler:
        assert threading.active_count() == n_threads
        fake_nvml.wait_for_readings(4)
    found = sampler.telemetry(1)
    assert found.n_samples >= 2
    assert found.sm_clock_mhz == Interval(estimate=1980.0, low=1980.0, high=1980.0, level=1.0)
    assert found.throttle_reasons == ("sw_power_cap",)


def test_a_block_that_raises_ends_the_process(gpu, wait_until_dead):
    sampler = Sampler(gpu)
    with pytest.raises(ValueError), sampler:
        raise ValueError
    wait_until_dead(sampler._process.pid)


def test_sensors_that_cannot_be_sampled_leave_the_energy(monkeypatch, gpu):
    counter, clock = iter([100.0, 150.0]), iter([7.0, 8.0])
    monkeypatch.setattr(telemetry, "read_energy_j", lambda gpu: next(counter))
    monkeypatch.setattr(telemetry, "perf_counter", lambda: next(clock))
    with Sampler(Gpu("b", "b")) as sampler:
        pass
    assert sampler.telemetry(10) == Telemetry(energy_per_step_j=5.0)


def test_a_process_that_cannot_be_started_is_no_error(monkeypatch, gpu):
    monkeypatch.setattr(telemetry, "SENSORS", ("/nowhere/python",))
    with Sampler(gpu) as sampler:
        pass
    assert sampler.telemetry(10) == Telemetry()


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
        "from peakward.lab.measure.telemetry import SensorProcess\n"
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
    monkeypatch.setattr(telemetry, "END_WAIT_S", 0.2)
    fake_nvml.fail(fault)
    process = SensorProcess("GPU-a")
    process.begin()
    fake_nvml.wait_for_readings(3)
    assert process.end() == []
    wait_until_dead(process.pid)


@pytest.mark.parametrize("fault", ["hang", "chatter"])
def test_one_that_is_not_ready_is_killed(fake_nvml, monkeypatch, wait_until_dead, fault):
    monkeypatch.setattr(telemetry, "READY_WAIT_S", 0.2)
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
