"""Reads the GPU's own sensors over the timed steps; a separate process samples them. Imports no torch.

A failure of that process means fewer samples or none; nothing here fails a measurement.
"""

import contextlib
import os
import select
import subprocess
import sys
import weakref
from collections.abc import Sequence
from statistics import fmean
from time import perf_counter
from types import TracebackType
from typing import Protocol, Self

import msgspec
import pynvml

from peakward.lab.measure import nvml
from peakward.lab.measure.sensors import BEGIN, END, READY, Sample
from peakward.records.measurement import Interval, Telemetry

MIN_ENERGY_S = 0.5
"""The least time for the energy counter, which moves every 20 to 100 ms; over less time, its steps
would show."""
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
"""The bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h), by nvidia-smi's names. Idle, 0x1, is no
throttling."""


class Monitor(Protocol):
    """Watches what may spoil the times taken in its `with` block."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def telemetry(self, n_steps: int, /) -> Telemetry | None:
        """The telemetry of the block, in which `n_steps` steps ran; None where there is no sensor."""

    def doubt(self) -> str | None:
        """The reason to doubt the times of the block, or None."""


class Sampler:
    """Samples the device inside its `with` block; `telemetry` then sums it up.

    Made before warm-up it costs no time: its process gets ready meanwhile. A pause before the timed
    steps would let the GPU cool. Without a GPU it does nothing and `telemetry` gives None.
    """

    def __init__(self, gpu: nvml.Gpu | None) -> None:
        self._gpu = gpu
        self._process = None if gpu is None else _start(gpu)
        self._samples: list[Sample] = []
        self._energy_j: float | None = None

    def __enter__(self) -> Self:
        if self._gpu is not None:
            if self._process is not None:
                self._process.begin()
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
        if self._process is not None:
            self._samples = self._process.end()
        if elapsed_s >= MIN_ENERGY_S and self._before_j is not None and after_j is not None:
            self._energy_j = after_j - self._before_j

    def telemetry(self, n_steps: int, /) -> Telemetry | None:
        """The telemetry of the block, in which `n_steps` steps ran; None without a GPU."""
        if self._gpu is None:
            return None
        return summarise_samples(self._samples, self._energy_j, n_steps)

    def doubt(self) -> str | None:
        """None: the verdict reads the sensors' doubts from the telemetry."""
        return None


class SensorProcess:
    """Starts at once and waits, so that `begin` finds it ready; ends with `end` or when it is no longer
    referenced.

    It stays in its parent's group: a terminal that stops the one stops the other.
    """

    def __init__(self, uuid: str) -> None:
        """
        Raises:
            OSError: no process can be started.
        """
        self._process = subprocess.Popen(
            [*SENSORS, uuid],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._end = weakref.finalize(self, _end, self._process)
        self._end.atexit = (
            False  # At exit the pipe closes by itself, and a forked child's exit is not ours.
        )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def begin(self) -> None:
        """Lets it sample from now on. A process that is not ready in time is killed, because its start
        would disturb the measurement."""
        requests, replies = self._process.stdin, self._process.stdout
        assert requests is not None and replies is not None
        ready = select.poll()
        ready.register(replies, select.POLLIN)
        if ready.poll(READY_WAIT_S * 1e3) and os.read(replies.fileno(), len(READY)) == READY:
            with contextlib.suppress(BrokenPipeError):
                requests.write(BEGIN)
        else:
            self._process.kill()

    def end(self) -> list[Sample]:
        """Ends it, and returns its samples."""
        return self._end() or []


def _start(gpu: nvml.Gpu) -> SensorProcess | None:
    try:
        return SensorProcess(nvml.uuid(gpu))
    except OSError:
        return None


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


def read_energy_j(gpu: nvml.Gpu) -> float | None:
    """The energy since the driver was loaded (Volta or newer)."""
    millijoules = nvml.query(pynvml.nvmlDeviceGetTotalEnergyConsumption, gpu.board)
    return None if millijoules is None else millijoules * 1e-3


SENSORS = (sys.executable, "-P", "-m", "peakward.lab.measure.sensors")
"""-P: as for the worker."""
READY_WAIT_S = 10.0
"""The time until it is ready. It starts in 0.1 s; where memory is short, in seconds."""
END_WAIT_S = 5.0
"""The time for the last reading and the answer, which take milliseconds."""
KILL_WAIT_S = 1.0
"""The time after which it is left behind: a call into a driver that hangs cannot be killed."""


def _end(process: subprocess.Popen[bytes]) -> list[Sample]:
    try:
        said, _ = process.communicate(END, timeout=END_WAIT_S)
        return msgspec.json.decode(said, type=list[Sample])
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=KILL_WAIT_S)
    except msgspec.DecodeError:
        pass
    return []
