"""The levels of a machine's memory as its calibration measured them, and the ways between them.

A read goes through all nearer levels line by line, so that it takes the same to each of them: the
latency of the first load, then the bytes at the level's rate. A copy over a link and a read of a file
are hops of their own, one after another, as a loader that fills a buffer and then sends it makes them.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from peakward.prediction.time.device_model import N_TENSORS, TrafficCurve
from peakward.records.calibration import Calibration, Rates
from peakward.records.case import DeviceType
from peakward.records.device import Device
from peakward.records.errors import PeakwardError
from peakward.report.format import format_cell
from peakward.studies.values import groups

MEMORY = "memory"
"""The calibration's name for what lies behind the last cache."""
PINNED = "host memory, pinned"
CORES: dict[DeviceType, str] = {"cpu": "cores", "cuda": "multiprocessors"}


class Hop(Protocol):
    """A part of a way."""

    def time_s(self, size_bytes: float) -> float | None:
        """Seconds to move so many bytes; None where it is not known."""


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """A level that is read, or a link that is copied over; None where it is not known."""

    name: str
    ends: tuple[str, str] | None = None
    """The two ends of a copy over a link or of a read of a file; None of a level."""
    capacity_bytes: int | None = None
    bytes_per_s: float
    latency_s: float | None
    """A load of a level that waits for the one before it; else the time of one page."""
    stated_bytes_per_s: float | None = None
    """By the datasheet."""

    @property
    def share(self) -> float | None:
        """The rate over the datasheet's.

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


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """A copy within the device's memory, as long as one pass over tensors of this size took."""

    curve: TrafficCurve

    def time_s(self, size_bytes: float) -> float | None:
        """Seconds to copy so many bytes."""
        return self.curve.time_s(N_TENSORS["copy"] * size_bytes)


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """A way from one place to another."""

    ends: tuple[str, str]
    hops: tuple[Hop, ...]
    capacity_bytes: int | None = None
    """The bytes that the source holds; None where nobody says."""

    @property
    def name(self) -> str:
        """Both ends."""
        return " → ".join(self.ends)

    def time_s(self, size_bytes: int) -> float | None:
        """Seconds; None where the source cannot hold so much or a hop's time is not known."""
        if self.capacity_bytes is not None and size_bytes > self.capacity_bytes:
            return None
        times = [hop.time_s(size_bytes) for hop in self.hops]
        known = [each for each in times if each is not None]
        return sum(known) if len(known) == len(times) else None


def read(of: Calibration, device: Device | None) -> tuple[Level, ...]:
    """The nearest first: levels of memory, then the host link, then the disk.

    Args:
        device: the datasheet, where this device is catalogued.
    """
    if of.rates is None:
        return ()
    return (
        *_memory(of.rates, of.environment.device_memory_bytes, device),
        *_links(of.rates, device),
        *_disks(of.rates, "host memory" if of.environment.device_type == "cuda" else MEMORY),
    )


def _memory(rates: Rates, memory_bytes: int, device: Device | None) -> Iterator[Level]:
    """Each at its best: the highest rate and the least latency of the working sets that lie in it."""
    for own in groups((each for each in rates.levels if each.level), lambda each: each.level):
        name, in_memory = own[0].level or "", own[0].level == MEMORY
        loads = [each.load_s for each in rates.latency if each.level == name]
        yield Level(
            name=name,
            capacity_bytes=memory_bytes if in_memory else own[0].capacity_bytes,
            bytes_per_s=max(each.bytes_per_s for each in own),
            latency_s=min(loads, default=None),
            stated_bytes_per_s=device.bytes_per_s.value if device and in_memory else None,
        )


def _links(rates: Rates, device: Device | None) -> Iterator[Level]:
    stated = device.host_link.bytes_per_s.value if device and device.host_link else None
    for own in groups(rates.link, lambda each: (each.memory, each.direction)):
        memory, direction = own[0].memory, own[0].direction
        host = f"host memory, {memory}"
        ends = (host, MEMORY) if direction == "to device" else (MEMORY, host)
        sizes = ((each.size_bytes, each.bytes_per_s) for each in own)
        yield _transfer(f"host link ({memory}, {direction})", ends, sizes, stated)


def _disks(rates: Rates, target: str) -> Iterator[Level]:
    for own in groups(rates.disk, lambda each: each.source):
        source = own[0].source
        blocks = ((each.block_bytes, each.bytes_per_s) for each in own)
        yield _transfer(source, (source, target), blocks)


def _transfer(
    name: str,
    ends: tuple[str, str],
    sizes: Iterable[tuple[int, float]],
    stated: float | None = None,
) -> Level:
    """The rate of the largest transfer and the time of the smallest, where two sizes were measured."""
    by_size = dict(sizes)
    smallest, largest = min(by_size), max(by_size)
    return Level(
        name=name,
        ends=ends,
        bytes_per_s=by_size[largest],
        latency_s=smallest / by_size[smallest] if smallest < largest else None,
        stated_bytes_per_s=stated,
    )


def routes(levels: Sequence[Level], rates: Rates, device_type: DeviceType) -> Iterator[Route]:
    """The ways between any two places that the calibration measured a way between."""
    cores, named = CORES[device_type], {each.name: each for each in levels}
    memory, disk = named.get(MEMORY), named.get("disk")
    for each in levels:
        if each.ends is None:
            yield Route(ends=(each.name, cores), hops=(each,), capacity_bytes=each.capacity_bytes)
    copies = [each for each in rates.traffic if each.operation == "copy"]
    if memory is not None and memory.capacity_bytes is not None and len(copies) > 1:
        copy = Copy(curve=TrafficCurve.measured(copies, "copy"))
        yield Route(ends=(MEMORY, MEMORY), hops=(copy,), capacity_bytes=memory.capacity_bytes // 2)
    for each in levels:
        if each.ends is not None:
            yield Route(ends=each.ends, hops=(each,))
    # Past the host's memory: over the link from a pinned buffer, or on to the cores.
    link = next((each for each in levels if each.ends == (PINNED, MEMORY)), None)
    onward, target = (link, MEMORY) if device_type == "cuda" else (memory, cores)
    if disk is not None and onward is not None:
        yield Route(ends=("disk", target), hops=(disk, onward))


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
