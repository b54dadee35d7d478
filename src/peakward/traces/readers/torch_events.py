"""The events of a PyTorch trace, decoded with only the fields that the table needs.

A union tagged on `ph` decodes flows and counters into empty objects. On 8 MB of a trace of an A100 in torch
2.3 it reached 500 MB/s; with every flow as a full event it reached 350 MB/s.
"""

from typing import Any, Union

import msgspec

from peakward.traces.table import NONE

Id = int | str | float | None
"""A pid or tid."""

Number = int | str | float | None
"""ROCm writes some numbers as strings."""


def id_text(value: Id) -> str:
    """The text of a pid or tid; empty where there is none."""
    return "" if value is None else str(value)


Raw = msgspec.Raw
ABSENT = Raw(b"null")


class Arguments(
    msgspec.Struct,
    gc=False,
    rename={
        "n_bytes": "bytes",
        "sequence": "Sequence number",
        "forward_thread": "Fwd thread id",
        "dims": "Input Dims",
        "types": "Input type",
        "concrete": "Concrete Inputs",
        "graph": "graph id",
    },
):
    """The `args` of an event."""

    correlation: Number = NONE
    stream: Number = NONE
    device: Number = NONE
    n_bytes: Number = NONE
    sequence: Number = NONE
    forward_thread: Number = NONE
    graph: Number = NONE
    dims: Raw = ABSENT
    types: Raw = ABSENT
    concrete: Raw = ABSENT


class Complete(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """An event with a start and a duration, in µs."""

    name: str
    ts: int | float
    dur: int | float = 0
    """0 without one: an event that was still open at the end of the recording counts as an instant."""
    cat: str | None = None
    pid: Id = None
    tid: Id = None
    args: Arguments | None = None


class CompleteAsText(Complete, gc=False, tag_field="ph", tag="X"):
    """A `Complete` event with its times as written."""

    ts: Raw  # type: ignore[assignment]
    dur: Raw = Raw(b"0")  # type: ignore[assignment]


class Begin(msgspec.Struct, gc=False, tag_field="ph", tag="B"):
    """A start whose end is a separate event."""

    name: str
    ts: Raw
    cat: str | None = None
    pid: Id = None
    tid: Id = None
    args: Arguments | None = None


class End(msgspec.Struct, gc=False, tag_field="ph", tag="E"):
    """The end of the last event that began on its thread."""

    ts: Raw
    pid: Id = None
    tid: Id = None


def on_its_own(half: Begin | End) -> Begin | End:
    """The event without a reference to the text of its whole piece."""
    half.ts = half.ts.copy()
    if isinstance(half, Begin) and half.args is not None:
        args = half.args
        args.dims, args.types, args.concrete = (
            each if each is ABSENT else each.copy()
            for each in (args.dims, args.types, args.concrete)
        )
    return half


class About(msgspec.Struct, gc=False, tag_field="ph", tag="M"):
    """The name of a thread or process, and other metadata."""

    name: str
    pid: Id = None
    tid: Id = None
    args: Raw = ABSENT


class ThreadName(msgspec.Struct, gc=False):
    """The `args` of an `About` called thread_name."""

    name: str


Event = Complete | Begin | End | About

_LEFT_OUT = tuple(
    msgspec.defstruct(f"Skipped{number}", [], tag_field="ph", tag=letter, gc=False)
    for number, letter in enumerate("stfiIRPCbneSTpFNODcvVa")
)
"""Every other letter of the Trace Event Format: flows, instants, counters, asynchronous events, objects,
clocks and memory dumps."""

_Decoded: Any = Union[(Complete, Begin, End, About, *_LEFT_OUT)]
_DecodedWithText: Any = Union[(CompleteAsText, Begin, End, About, *_LEFT_OUT)]

EVENTS: msgspec.json.Decoder[list[Event]] = msgspec.json.Decoder(list[_Decoded])
EVENTS_WITH_TEXT: msgspec.json.Decoder[list[Event]] = msgspec.json.Decoder(list[_DecodedWithText])
EVENT_WITH_TEXT: msgspec.json.Decoder[Event] = msgspec.json.Decoder(_DecodedWithText)
TEXTS = msgspec.json.Decoder(list[Raw])
