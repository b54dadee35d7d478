"""The device's sensors, summed up."""

import pytest

from peakward.lab.measure import telemetry
from peakward.lab.measure.nvml import Gpu
from peakward.lab.measure.telemetry import Sample, Sampler, reason_names, summarise_samples
from peakward.records.measurement import Interval
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


@pytest.mark.parametrize(("region_s", "energy_j"), [(0.6, 5.0), (0.4, None)])
def test_energy_is_the_counter_s_difference_over_a_long_region(monkeypatch, region_s, energy_j):
    counter, clock = iter([100.0, 150.0]), iter([7.0, 7.0 + region_s])
    monkeypatch.setattr(telemetry, "read_energy_j", lambda gpu: next(counter))
    monkeypatch.setattr(telemetry, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(telemetry, "read_sample", lambda gpu: Sample(None, None, None, None))
    with Sampler(Gpu("a", "a")) as sampler:
        pass
    assert sampler.telemetry(10).energy_per_step_j == energy_j


def test_the_thread_samples_until_the_block_ends(monkeypatch):
    taken = []

    def read(gpu):
        taken.append(gpu)
        return Sample(1000.0, 1.0, 1.0, 0)

    monkeypatch.setattr(telemetry, "read_energy_j", lambda gpu: None)
    monkeypatch.setattr(telemetry, "read_sample", read)
    monkeypatch.setattr(telemetry, "PERIOD_S", 0.001)
    with Sampler(Gpu("a", "a")) as sampler:
        while len(taken) < 3:
            pass
    n_taken = len(taken)
    assert sampler.telemetry(1).n_samples == n_taken
    assert not sampler._thread.is_alive()
