"""What one process gathered, as bytes for another, and two parts of a trace joined."""

import msgspec

from peakward.traces.readers.gathered import LeftOut
from peakward.traces.readers.torch_events import Id


class Part(msgspec.Struct, frozen=True):
    """A `Gathered` without halves of events, as plain values."""

    n_events: int
    host: dict[str, bytes]
    gpu: dict[str, bytes]
    names: list[str]
    shapes: list[bytes]
    threads: list[tuple[Id, Id]]
    gpu_processes: list[Id]
    thread_names: list[tuple[str, str, str]]
    left_out: LeftOut
    after: bytes
    """The text after the events."""
