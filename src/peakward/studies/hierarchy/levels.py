"""The levels of a machine's memory as its calibration measured them, beside the datasheet."""

from collections.abc import Sequence

import msgspec

from peakward.records.calibration import Calibration, DiskRate, LinkRate, Rates
from peakward.records.device import Device
from peakward.records.errors import PeakwardError
from peakward.report.format import format_cell

MEMORY = "memory"
"""The calibration's name for what lies behind the last cache."""
PINNED = "host memory, pinned"


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """A level that is read, or a link that is copied over; None where it is not known."""

    name: str
    ends: tuple[str, str] | None = None
    """Whence and whither a copy goes over a link, or a file is read; None of a level."""
    capacity_bytes: int | None
    bytes_per_s: float
    latency_s: float | None
    """Of a level, a load that waits for the one before it; else the time of one page."""
    stated_bytes_per_s: float | None
    """By the datasheet."""

    @property
    def share(self) -> float | None:
        """Of the datasheet's figure.

        Raises:
            PeakwardError: above 1, which nothing can reach: the arithmetic is wrong somewhere.
        """
        if self.stated_bytes_per_s is None:
            return None
        share = self.bytes_per_s / self.stated_bytes_per_s
        if share > 1:
            raise PeakwardError(
                f"expected {self.name} to be no faster than the datasheet's "
                f"{format_cell(self.stated_bytes_per_s, 'bytes_per_s')}, got "
                f"{format_cell(self.bytes_per_s, 'bytes_per_s')}: an error of Peakward's; please "
                "report it",
                exit_code=1,
            )
        return share

    def time_s(self, size_bytes: float) -> float | None:
        """Seconds to move so much: the latency, then the bytes at the rate. None without a latency."""
        return None if self.latency_s is None else self.latency_s + size_bytes / self.bytes_per_s


def read(calibration: Calibration, device: Device | None) -> tuple[Level, ...]:
    """The nearest first: levels of memory, then the host link, then the disk.

    Args:
        device: the datasheet, where this device is catalogued.
    """
    rates = calibration.rates
    if rates is None:
        return ()
    host_link = None if device is None else device.host_link
    on_gpu = calibration.environment.device_type == "cuda"
    return (
        *_levels(rates, calibration.environment.device_memory_bytes, device),
        *_links(rates.link, None if host_link is None else host_link.bytes_per_s.value),
        *_disks(rates.disk, "host memory" if on_gpu else MEMORY),
    )


def last_cache(rates: Rates) -> tuple[str, int] | None:
    """The name of the last cache that was measured and what it holds in bytes, where the machine says."""
    holds = {each.level: each.capacity_bytes for each in rates.levels}
    known = [(name, size) for name, size in holds.items() if name is not None and size is not None]
    return max(known, key=lambda each: each[1], default=None)


def fits_into(rates: Rates, footprint_bytes: int) -> str | None:
    """The level that can hold tensors of so many bytes together: the last cache, or memory alone.

    None beyond what the last cache holds and below the first working set that counts as memory. A copy
    of two tensors of 16 MiB on an H100, whose L2 holds 50 MiB, ran at 3.86 TB/s: memory gives 3.35.
    """
    cache = last_cache(rates)
    if cache is not None and footprint_bytes <= cache[1]:
        return cache[0]
    beyond = [each.working_set_bytes for each in rates.levels if each.level == MEMORY]
    return MEMORY if beyond and footprint_bytes >= min(beyond) else None


def _levels(rates: Rates, memory_bytes: int, device: Device | None) -> tuple[Level, ...]:
    """Each at its best: the highest rate and the least latency of the working sets that lie in it."""
    names = dict.fromkeys(each.level for each in rates.levels if each.level is not None)
    found = []
    for name in names:
        own = [each for each in rates.levels if each.level == name]
        loads = [each.load_s for each in rates.latency if each.level == name]
        in_memory = name == MEMORY
        found.append(
            Level(
                name=name,
                capacity_bytes=memory_bytes if in_memory else own[0].capacity_bytes,
                bytes_per_s=max(each.bytes_per_s for each in own),
                latency_s=min(loads, default=None),
                stated_bytes_per_s=device.bytes_per_s.value if device and in_memory else None,
            )
        )
    return tuple(found)


def _links(rates: Sequence[LinkRate], stated: float | None) -> tuple[Level, ...]:
    found = []
    for memory, direction in dict.fromkeys((each.memory, each.direction) for each in rates):
        own = [each for each in rates if (each.memory, each.direction) == (memory, direction)]
        by_size = {each.size_bytes: each.bytes_per_s for each in own}
        host = f"host memory, {memory}"
        found.append(
            Level(
                name=f"host link ({memory}, {direction})",
                ends=(host, MEMORY) if direction == "to device" else (MEMORY, host),
                capacity_bytes=None,
                bytes_per_s=by_size[max(by_size)],
                latency_s=_least_s(by_size),
                stated_bytes_per_s=stated,
            )
        )
    return tuple(found)


def _disks(rates: Sequence[DiskRate], target: str) -> tuple[Level, ...]:
    found = []
    for source in dict.fromkeys(each.source for each in rates):
        by_size = {each.block_bytes: each.bytes_per_s for each in rates if each.source == source}
        found.append(
            Level(
                name=source,
                ends=(source, target),
                capacity_bytes=None,
                bytes_per_s=by_size[max(by_size)],
                latency_s=_least_s(by_size),
                stated_bytes_per_s=None,
            )
        )
    return tuple(found)


def _least_s(by_size: dict[int, float]) -> float | None:
    """Seconds of the smallest transfer; None where only one size was measured."""
    smallest = min(by_size)
    return smallest / by_size[smallest] if len(by_size) > 1 else None
