"""The time of moving bytes once through the device, from a few KiB, which cost a launch, up.

Small tensors stay in the last cache, so that a pass over them is faster than memory allows: on an
H200 an addition of tensors of 16 MiB moves 3.9 TB/s, a copy of them 4.9, and of 128 MiB 4.2.
"""

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple, Self

from peakward.records.calibration import Traffic, TrafficRate

N_TENSORS: dict[Traffic, int] = {"copy": 2, "add": 3}
"""The number of tensors that one call of each operation moves."""
FULL = 1.25
"""Launches from which on a kernel's time is all in what it moves, as far as a factor on it says."""


class TrafficCurve(NamedTuple):
    """Seconds of a call by the bytes that it moves, straight between what was measured."""

    moved_bytes: tuple[int, ...]
    """Ascending; at least two."""
    call_s: tuple[float, ...]

    @classmethod
    def measured(cls, rates: Iterable[TrafficRate], operation: Traffic = "add") -> Self:
        """The curve of additions, which read two tensors and write one as most operators do, or of copies."""
        points = sorted(
            (N_TENSORS[operation] * each.size_bytes, each.bytes_per_s)
            for each in rates
            if each.operation == operation
        )
        return cls(
            tuple(moved for moved, _ in points),
            tuple(moved / bytes_per_s for moved, bytes_per_s in points),
        )

    @classmethod
    def stated(cls, bytes_per_s: float, launch_s: float) -> Self:
        """A launch and then the bandwidth, whatever the size."""
        large = round(bytes_per_s)
        return cls((0, large), (launch_s, launch_s + large / bytes_per_s))

    @property
    def launch_s(self) -> float:
        """The time of a call that moves next to nothing."""
        return self.call_s[0]

    def slowed_s(self, factor: float, moved_bytes: float) -> float:
        """`factor` times `time_s`; but of what hardly takes longer than a launch, a launch remains one."""
        plain_s, full_s = self.time_s(moved_bytes), FULL * self.launch_s
        if plain_s >= full_s:
            return factor * plain_s
        share = (plain_s - self.launch_s) / (full_s - self.launch_s)
        return self.launch_s + share * (factor * full_s - self.launch_s)

    def time_s(self, moved_bytes: float) -> float:
        """Beyond the last point at its bandwidth; below the first a launch."""
        if moved_bytes <= self.moved_bytes[0]:
            return self.call_s[0]
        i = bisect_left(self.moved_bytes, moved_bytes)
        if i == len(self.moved_bytes):
            return moved_bytes * self.call_s[-1] / self.moved_bytes[-1]
        low, high = self.moved_bytes[i - 1], self.moved_bytes[i]
        share = (moved_bytes - low) / (high - low)
        return self.call_s[i - 1] + share * (self.call_s[i] - self.call_s[i - 1])
