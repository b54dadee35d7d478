"""The allocations and frees on a GPU in a PyTorch trace.

Torch's profiler writes them with `profile_memory=True` as instants called `[memory]`, on the clock of the
trace's kernels.
"""

import gzip
from pathlib import Path
from typing import Any, NamedTuple, Union

import msgspec
import numpy as np

from peakward.records.errors import PeakwardError, printable
from peakward.traces.readers.json_text import nanoseconds_of_text
from peakward.traces.readers.torch_events import Id, id_text
from peakward.traces.reading import GZIP
from peakward.traces.table import Ints

NAME = "[memory]"


class AllocatorEvents(NamedTuple):
    """Columns of equal length, in the order of their times."""

    at_ns: Ints
    address: Ints
    n_bytes: Ints
    """The block's bytes: above 0 for an allocation, below for a free."""
    thread: tuple[tuple[str, str], ...]
    """Process and thread, named as in `Table`."""


class _Arguments(msgspec.Struct, gc=False):
    address: int = msgspec.field(name="Addr", default=0)
    n_bytes: int = msgspec.field(name="Bytes", default=0)
    device: int = msgspec.field(name="Device Id", default=-1)


class _Instant(msgspec.Struct, gc=False, tag_field="ph", tag="i"):
    name: str
    ts: msgspec.Raw
    pid: Id = None
    tid: Id = None
    args: _Arguments | None = None


_SKIPPED = tuple(
    msgspec.defstruct(f"_Skipped{number}", [], tag_field="ph", tag=letter, gc=False)
    for number, letter in enumerate("XBEMstfIRPCbneSTpFNODcvVa")
)
_Decoded: Any = Union[(_Instant, *_SKIPPED)]


class _File(msgspec.Struct, gc=False):
    traceEvents: list[_Decoded]


def read(path: Path) -> AllocatorEvents:
    """The allocator's events on all GPUs. The trace was written on this machine, so it is read as a whole.

    Raises:
        PeakwardError: it cannot be read, or is no trace.
    """
    try:
        text = path.read_bytes()
        found = msgspec.json.decode(
            gzip.decompress(text) if text.startswith(GZIP) else text, type=_File
        )
    except (OSError, EOFError, msgspec.DecodeError) as error:
        said = printable(" ".join(str(error).split()))
        raise PeakwardError(f"expected a trace of torch's profiler, got {said}") from error
    mine = [
        (each, each.args)
        for each in found.traceEvents
        if type(each) is _Instant and each.name == NAME and each.args and each.args.device >= 0
    ]
    at_ns = nanoseconds_of_text([each.ts for each, _ in mine])
    order = np.argsort(at_ns, kind="stable")
    mine = [mine[each] for each in order]
    return AllocatorEvents(
        at_ns=at_ns[order],
        address=np.array([told.address for _, told in mine], np.int64),
        n_bytes=np.array([told.n_bytes for _, told in mine], np.int64),
        thread=tuple((id_text(each.pid), id_text(each.tid)) for each, _ in mine),
    )
