"""The GPU's own sensors over the timed steps, sampled by NVML from a thread."""

import threading
from collections.abc import Sequence
from statistics import fmean
from time import perf_counter
from types import TracebackType
from typing import NamedTuple, Protocol, Self

import pynvml

from peakward.lab.measure import nvml
from peakward.records.measurement import Interval, Telemetry

PERIOD_S = 0.1
"""The sensors move every 20 to 100 ms. One sample takes Python's lock some five times from a host
that launches kernels."""
MIN_ENERGY_S = 0.5
"""The energy counter moves every 20 to 100 ms; over less, its steps would show."""
THROTTLE_REASONS = {
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h), by nvidia-smi's names. Idle, 0x1, is no
throttling."""


class Sample(NamedTuple):
    """One reading; None for what this device does not tell."""

    sm_clock_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    reasons: int | None


class Watch(Protocol):
    """Inside its `with` block, watches what may spoil the times taken in it."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def telemetry(self, n_steps: int, /) -> Telemetry | None:
        """Of the block, in which `n_steps` steps ran; None where there is no sensor."""

    def doubt(self) -> str | None:
        """Why the times of the block are doubtful, or None."""


class Sampler:
    """Inside its `with` block, samples the device; `telemetry` then sums it up.

    Without a GPU it does nothing and `telemetry` gives None.
    """

    def __init__(self, gpu: nvml.Gpu | None) -> None:
        self._gpu = gpu
        self._samples: list[Sample] = []
        self._energy_j: float | None = None

    def __enter__(self) -> Self:
        if self._gpu is not None:
            self._stop = threading.Event()
            self._thread = threading.Thread(
                target=self._watch, args=(self._gpu,), name="peakward-telemetry", daemon=True
            )
            self._thread.start()
            self._before_j = read_energy_j(self._gpu)
            self._started = perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._gpu is None:
            return
        elapsed_s = perf_counter() - self._started
        after_j = read_energy_j(self._gpu)
        self._stop.set()
        self._thread.join()
        if elapsed_s >= MIN_ENERGY_S and self._before_j is not None and after_j is not None:
            self._energy_j = after_j - self._before_j

    def telemetry(self, n_steps: int, /) -> Telemetry | None:
        """Of the block, in which `n_steps` steps ran; None without a GPU."""
        if self._gpu is None:
            return None
        return summarise_samples(self._samples, self._energy_j, n_steps)

    def doubt(self) -> str | None:
        """None: what the sensors say against the times, the verdict reads from the telemetry."""
        return None

    def _watch(self, gpu: nvml.Gpu) -> None:
        while not self._stop.wait(PERIOD_S):
            self._samples.append(read_sample(gpu))


def summarise_samples(samples: Sequence[Sample], energy_j: float | None, n_steps: int) -> Telemetry:
    """Means and extremes of the samples, energy per step, and every throttling reason seen."""
    bits = 0
    for sample in samples:
        bits |= sample.reasons or 0
    return Telemetry(
        sm_clock_mhz=_spread([sample.sm_clock_mhz for sample in samples]),
        power_w=_spread([sample.power_w for sample in samples]),
        temperature_c=_spread([sample.temperature_c for sample in samples]),
        energy_per_step_j=None if energy_j is None or not n_steps else energy_j / n_steps,
        throttle_reasons=reason_names(bits),
        n_samples=len(samples),
    )


def reason_names(bits: int) -> tuple[str, ...]:
    """The names of the bits that are set; an unknown bit by its number."""
    known = [name for bit, name in THROTTLE_REASONS.items() if bits & bit]
    rest = bits & ~(sum(THROTTLE_REASONS) | 0x1)
    unknown = [f"reason_{1 << i:#x}" for i in range(rest.bit_length()) if rest >> i & 1]
    return (*known, *unknown)


def _spread(values: Sequence[float | None]) -> Interval | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return Interval(estimate=fmean(known), low=min(known), high=max(known), level=1.0)


def read_sample(gpu: nvml.Gpu) -> Sample:
    """The sensors now."""
    clock = nvml.query(pynvml.nvmlDeviceGetClockInfo, gpu.board, pynvml.NVML_CLOCK_SM)
    temperature = nvml.query(
        pynvml.nvmlDeviceGetTemperature, gpu.board, pynvml.NVML_TEMPERATURE_GPU
    )
    reasons = nvml.query(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, gpu.board)
    return Sample(clock, _power_w(gpu), temperature, reasons)


def _power_w(gpu: nvml.Gpu) -> float | None:
    """The power of this instant; where only the driver's running mean of a second exists, that."""
    fields = nvml.query(
        pynvml.nvmlDeviceGetFieldValues, gpu.board, [pynvml.NVML_FI_DEV_POWER_INSTANT]
    )
    if fields is not None and fields[0].nvmlReturn == pynvml.NVML_SUCCESS:
        return float(fields[0].value.uiVal) * 1e-3
    milliwatts = nvml.query(pynvml.nvmlDeviceGetPowerUsage, gpu.board)
    return None if milliwatts is None else milliwatts * 1e-3


def read_energy_j(gpu: nvml.Gpu) -> float | None:
    """Since the driver was loaded (Volta or newer)."""
    millijoules = nvml.query(pynvml.nvmlDeviceGetTotalEnergyConsumption, gpu.board)
    return None if millijoules is None else millijoules * 1e-3
