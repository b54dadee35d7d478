"""Marks in time: CUDA events on a GPU, perf_counter on a CPU."""

from time import perf_counter
from typing import Protocol

import torch

from peakward.records.case import DeviceType


class Clock(Protocol):
    """A numbered series of marks. Marking must cost next to nothing: it happens between steps."""

    look_back: int
    """The number of chunks of work that may be in flight while the host looks at the one before them."""

    def reserve(self, n: int) -> None:
        """Forgets all marks and makes room for marks 0 to `n` - 1."""

    def mark(self, i: int) -> None:
        """Sets mark `i` between the work issued so far and the work issued next."""

    def wait(self, i: int) -> None:
        """Returns once the device has reached mark `i`."""

    def between_s(self, i: int, j: int) -> float:
        """Seconds from mark `i` to mark `j`, both reached."""


class CpuClock:
    """Work is done when its call returns, so a mark is a reading of the clock."""

    look_back = 0

    def reserve(self, n: int) -> None:
        """See Clock."""
        self._times = [0.0] * n

    def mark(self, i: int) -> None:
        """See Clock."""
        self._times[i] = perf_counter()

    def wait(self, i: int) -> None:
        """Every mark made is reached."""

    def between_s(self, i: int, j: int) -> float:
        """See Clock."""
        return self._times[j] - self._times[i]


class CudaClock:
    """Events on the current stream of the current device, created before they are needed."""

    look_back = 2

    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []

    def reserve(self, n: int) -> None:
        """See Clock."""
        while len(self._events) < n:
            event = torch.cuda.Event(enable_timing=True)
            event.record()  # torch creates the CUDA event at its first record
            self._events.append(event)
        self._stream = torch.cuda.current_stream()

    def mark(self, i: int) -> None:
        """See Clock. With the stream given, torch need not look it up."""
        self._events[i].record(self._stream)

    def wait(self, i: int) -> None:
        """See Clock."""
        self._events[i].synchronize()

    def between_s(self, i: int, j: int) -> float:
        """See Clock. The resolution is about 0.5 µs (CUDA runtime API, cudaEventElapsedTime)."""
        return self._events[i].elapsed_time(self._events[j]) * 1e-3


def clock_for(device_type: DeviceType) -> Clock:
    """The clock of that kind of device."""
    return CudaClock() if device_type == "cuda" else CpuClock()
