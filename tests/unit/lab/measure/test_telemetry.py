"""The device's sensors, summed up."""

import threading

import pytest

from peakward.lab.measure import sensor_process, telemetry
from peakward.lab.measure.nvml import Gpu
from peakward.lab.measure.sensors import Sample
from peakward.lab.measure.telemetry import Sampler, reason_names, summarise_samples
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
    monkeypatch.setattr(sensor_process, "SENSORS", ("/nowhere/python",))
    with Sampler(gpu) as sampler:
        pass
    assert sampler.telemetry(10) == Telemetry()
