"""PyTorch profiler traces: Kineto's Chrome JSON, `.json` or `.json.gz`."""

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO

from peakward.records.errors import PeakwardError
from peakward.traces.readers.gathered import Gathered
from peakward.traces.readers.memory_limit import free_bytes
from peakward.traces.readers.pieces import Truncated, ahead, gunzipped, is_gzip, plain
from peakward.traces.readers.torch_gather import gather
from peakward.traces.readers.torch_outer import cut_off, head, tail
from peakward.traces.readers.torch_pairs import pair
from peakward.traces.readers.torch_table import table
from peakward.traces.table import Table

PIECE_BYTES = 4 << 20


def read(path: Path) -> Table:
    """The whole trace.

    GPU work is what has a kernel's, copy's or set's category; ranges that the profiler projects onto
    a stream are none. An event without a duration is a moment. Events whose times are negative or
    beyond 146 years, and entries that are no events, are left out and counted in `limits`.

    Raises:
        PeakwardError: there is no such file, it is no trace, it is damaged or cut off, or its
            columns would take more than half of the memory that is free.
    """
    try:
        with path.open("rb") as file:
            return _read(file, path.name)
    except PeakwardError as error:
        raise PeakwardError(f"{path.name}: {error}") from error
    except OSError as error:
        raise PeakwardError(
            f"expected a readable trace at {path}, got {error.strerror or error}: check the path"
        ) from error


def _read(file: IO[bytes], name: str) -> Table:
    gathered = Gathered()
    try:
        pieces = ahead(gunzipped(file, PIECE_BYTES)) if is_gzip(file) else plain(file, PIECE_BYTES)
        begun = head(pieces)
        rest, closed = gather(gathered, pieces, begun.rest, _memory_check(gathered, file))
        if not closed:
            raise cut_off(gathered.n_events)
        ended = tail(begun, rest, pieces, gathered.n_events)
        pair(gathered)
        _refuse_strangers(gathered)
        return table(gathered, ended.or_else(begun.metadata), name)
    except Truncated:
        raise cut_off(gathered.n_events) from None
    except zlib.error as error:
        raise PeakwardError(
            f"expected a sound gzip file, got damage after {gathered.n_events:,} events: "
            "copy it again"
        ) from error
    except MemoryError:
        raise _too_large(gathered, file) from None


def _memory_check(gathered: Gathered, file: IO[bytes]) -> Callable[[], None]:
    free = free_bytes()

    def check() -> None:
        if free is not None and gathered.n_bytes > free // 2:
            raise _too_large(gathered, file)

    return check


def _too_large(gathered: Gathered, file: IO[bytes]) -> PeakwardError:
    share = file.tell() / max(os.fstat(file.fileno()).st_size, 1)
    return PeakwardError(
        f"expected a trace whose columns fit in half of the free memory, got {gathered.n_events:,} "
        f"events, {gathered.n_bytes / 2**30:.2f} GiB, in {share:.0%} of the file: record fewer "
        "steps or no stacks, or read it where there is more memory"
    )


def _refuse_strangers(gathered: Gathered) -> None:
    n_malformed = gathered.left_out.malformed
    if n_malformed and n_malformed == gathered.n_events:
        raise PeakwardError(
            f"expected events of the Trace Event Format, got an array of {n_malformed:,} entries of "
            "which none is one: give a file that torch.profiler's export_chrome_trace wrote"
        )
