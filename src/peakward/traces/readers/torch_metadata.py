"""The metadata of a PyTorch trace: devices, the distributed job, the start of its clock."""

from typing import TypeVar

import msgspec

from peakward.traces.table import Device, Job

Raw = msgspec.Raw
ABSENT = Raw(b"null")
T = TypeVar("T")
_MAX_DEVICES_BYTES = 1 << 20
"""Kineto writes 0.5 KB for each device."""


class Metadata(
    msgspec.Struct,
    frozen=True,
    rename={
        "events": "traceEvents",
        "device_properties": "deviceProperties",
        "distributed": "distributedInfo",
        "base_time": "baseTimeNanoseconds",
    },
):
    """The used keys of the outermost object. Other keys stay unread, because some programs store their
    environment's variables there."""

    events: Raw | msgspec.UnsetType = msgspec.UNSET
    device_properties: Raw = ABSENT
    distributed: Raw = ABSENT
    base_time: Raw = ABSENT

    def or_else(self, other: "Metadata") -> "Metadata":
        """This metadata, with missing fields from another part of the same file."""
        missing = {
            name: getattr(other, name)
            for name in ("device_properties", "distributed", "base_time")
            if bytes(getattr(self, name)) == b"null"
        }
        return msgspec.structs.replace(self, **missing)

    def events_text(self) -> bytes | None:
        """The JSON of `traceEvents`; None without that key."""
        return None if self.events is msgspec.UNSET else bytes(self.events)

    def devices(self) -> tuple[Device, ...]:
        """The described devices; none where the description is not Kineto's."""
        if len(bytes(self.device_properties)) > _MAX_DEVICES_BYTES:
            return ()
        found = _decoded(self.device_properties, list[_Device]) or []
        return tuple(
            Device(each.id, each.name, each.memory_bytes, each.n_sms, each.compute_capability)
            for each in found
        )

    def job(self) -> Job | None:
        """The job's rank and size."""
        found = _decoded(self.distributed, _Distributed)
        return None if found is None else Job(found.rank, found.world_size)

    def base_time_ns(self) -> int | None:
        """The offset from the trace's times to nanoseconds since 1970."""
        return _decoded(self.base_time, int)


class _Device(
    msgspec.Struct,
    rename={
        "memory_bytes": "totalGlobalMem",
        "n_sms": "numSms",
        "major": "computeMajor",
        "minor": "computeMinor",
    },
):
    id: int
    name: str | None = None
    memory_bytes: int | None = None
    n_sms: int | None = None
    major: int | None = None
    minor: int | None = None

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        if self.major is None or self.minor is None:
            return None
        return (self.major, self.minor)


class _Distributed(msgspec.Struct):
    rank: int
    world_size: int


def _decoded(text: Raw, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(text, type=kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
