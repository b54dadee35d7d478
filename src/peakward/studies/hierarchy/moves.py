"""How long it takes to move a tensor from one place to another.

A read goes through all nearer levels line by line, so that it takes the same to each of them: the
latency of the first load, then the bytes at the level's rate. A copy over a link and a read of a file
are hops of their own, one after another, as a loader that fills a buffer and then sends it makes them.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from peakward.models.presets import model
from peakward.prediction.parameters import n_parameters
from peakward.prediction.time.traffic_curve import N_TENSORS, TrafficCurve
from peakward.records.calibration import TrafficRate
from peakward.records.case import DeviceType
from peakward.studies.hierarchy.levels import MEMORY, PINNED, Level

KIB, MIB, GIB = 2**10, 2**20, 2**30
CORES: dict[DeviceType, str] = {"cpu": "cores", "cuda": "multiprocessors"}


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """Something to move."""

    name: str
    size_bytes: int


class Hop(Protocol):
    """A part of the way."""

    def time_s(self, size_bytes: float) -> float | None:
        """Seconds; None where it is not known."""


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """Within the device's memory: as long as one pass over tensors of this size took."""

    curve: TrafficCurve

    def time_s(self, size_bytes: float) -> float | None:
        return self.curve.time_s(N_TENSORS["copy"] * size_bytes)


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """A way from one place to another."""

    source: str
    target: str
    capacity_bytes: int | None
    """What the source holds; None where nobody says."""
    hops: tuple[Hop, ...]

    @property
    def name(self) -> str:
        return f"{self.source} → {self.target}"

    def time_s(self, tensor: Tensor) -> float | None:
        """Seconds; None where the source cannot hold it or a hop's time is not known."""
        if self.capacity_bytes is not None and tensor.size_bytes > self.capacity_bytes:
            return None
        times = [hop.time_s(tensor.size_bytes) for hop in self.hops]
        known = [each for each in times if each is not None]
        return sum(known) if len(known) == len(times) else None


WEIGHTS = Tensor(name="weights of 2.7B, bf16", size_bytes=2 * n_parameters(model("2.7B")))


def tensors() -> tuple[Tensor, ...]:
    """Round sizes, then two of a model's own."""
    activation = 4 * 512 * model("small").d_model * 4
    return (
        Tensor(name="1 KiB", size_bytes=KIB),
        Tensor(name="1 MiB", size_bytes=MIB),
        Tensor(name="64 MiB", size_bytes=64 * MIB),
        Tensor(name="1 GiB", size_bytes=GIB),
        Tensor(name="residual activation of small, 4 × 512, fp32", size_bytes=activation),
        WEIGHTS,
    )


def routes(
    levels: Sequence[Level], traffic: Sequence[TrafficRate], device_type: DeviceType
) -> tuple[Route, ...]:
    """Between any two places that the calibration measured a way between."""
    return (
        *(_read(each, device_type) for each in levels if each.ends is None),
        *_copies(levels, traffic),
        *(_route(each.ends, each) for each in levels if each.ends is not None),
        *_from_disk(levels, device_type),
    )


def _route(ends: tuple[str, str], *hops: Hop, capacity_bytes: int | None = None) -> Route:
    source, target = ends
    return Route(source=source, target=target, capacity_bytes=capacity_bytes, hops=hops)


def _read(level: Level, device_type: DeviceType) -> Route:
    ends = (level.name, CORES[device_type])
    return _route(ends, level, capacity_bytes=level.capacity_bytes)


def _copies(levels: Sequence[Level], traffic: Sequence[TrafficRate]) -> Iterator[Route]:
    copies = [each for each in traffic if each.operation == "copy"]
    memory = next((each.capacity_bytes for each in levels if each.name == MEMORY), None)
    if memory is not None and len(copies) > 1:
        copy = Copy(curve=TrafficCurve.measured(copies, "copy"))
        yield _route((MEMORY, MEMORY), copy, capacity_bytes=memory // 2)


def _from_disk(levels: Sequence[Level], device_type: DeviceType) -> Iterator[Route]:
    """Past the host's memory: over the link from a pinned buffer, or on to the cores."""
    disk = next((each for each in levels if each.name == "disk"), None)
    link = next((each for each in levels if each.ends == (PINNED, MEMORY)), None)
    memory = next((each for each in levels if each.name == MEMORY), None)
    onward, target = (link, MEMORY) if device_type == "cuda" else (memory, CORES["cpu"])
    if disk is not None and onward is not None:
        yield _route(("disk", target), disk, onward)
