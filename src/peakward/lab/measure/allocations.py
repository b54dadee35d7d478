"""Records every allocation and free in a stretch of a process, in torch's snapshot format, with marks
among them."""

import gzip
import pickle
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile, record_function

from peakward.records.case import DeviceType

GZIP_LEVEL = 6
MARK = "peakward::mark"


class Recording(Protocol):
    """Records inside its `with` block until it is stopped; the other methods are called after that."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def mark(self) -> int:
        """The number of this mark, from 0; only before `stop`."""

    def stop(self) -> None:
        """Ends the recording; memory that is held now shows as held at the end."""

    def positions(self) -> tuple[int, ...]:
        """The number of allocations and frees before each mark."""

    def write(self, path: Path) -> None:
        """Writes the snapshot, gzipped."""


class CudaRecording:
    """Records by the caching allocator's history. The allocator's own counters tell where a mark is:
    they count the events that the history records, so no clock is needed."""

    def __enter__(self) -> Self:
        torch.cuda.memory._record_memory_history(
            enabled="all", context="all", stacks="python", clear_history=True
        )
        self._marks: list[int] = []
        self._snapshot: dict[str, Any] = {}
        self._before = _n_counted()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        torch.cuda.memory._record_memory_history(enabled=None)

    def stop(self) -> None:
        """See Recording."""
        self._snapshot = torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(enabled=None)

    def mark(self) -> int:
        """See Recording."""
        self._marks.append(_n_counted() - self._before)
        return len(self._marks) - 1

    def positions(self) -> tuple[int, ...]:
        """See Recording."""
        return tuple(self._marks)

    def write(self, path: Path) -> None:
        """See Recording."""
        _write(self._snapshot, path)


class CpuRecording:
    """Records by torch's profiler, which reports frees only of memory that was allocated under it."""

    def __enter__(self) -> Self:
        self._n_marks = 0
        self._found: list[int | dict[str, Any]] = []
        self._profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self._profiler.__enter__()
        self._records = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._records:
            self._profiler.__exit__(kind, error, trace)

    def stop(self) -> None:
        """See Recording."""
        self._records = False
        self._profiler.__exit__(None, None, None)
        self._found = _cpu_events(self._profiler)

    def mark(self) -> int:
        """See Recording."""
        with record_function(MARK):
            self._n_marks += 1
        return self._n_marks - 1

    def positions(self) -> tuple[int, ...]:
        """See Recording."""
        before = accumulate(isinstance(each, dict) for each in self._found)
        pairs = zip(before, self._found, strict=True)
        return tuple(n for n, each in pairs if not isinstance(each, dict))

    def write(self, path: Path) -> None:
        """See Recording."""
        events = [each for each in self._found if isinstance(each, dict)]
        _write({"segments": [], "device_traces": [events]}, path)


def recording(device_type: DeviceType) -> CudaRecording | CpuRecording:
    """A recording of the device's allocator in this process."""
    return CudaRecording() if device_type == "cuda" else CpuRecording()


def _n_counted() -> int:
    counted = torch.cuda.memory_stats_as_nested_dict()["allocation"]["all"]
    return int(counted["allocated"]) + int(counted["freed"])


def _cpu_events(profiler: profile) -> list[int | dict[str, Any]]:
    """Marks (as their times), allocations and frees, in the order of their times."""
    assert profiler.profiler is not None and profiler.profiler.kineto_results is not None
    waiting = list(profiler.profiler.kineto_results.experimental_event_tree())
    found: list[tuple[int, int | dict[str, Any]]] = []
    while waiting:
        event = waiting.pop()
        waiting += event.children
        at = event.start_time_ns
        if event.tag == _EventType.Allocation:
            found.append((at, _as_torch_tells(event.extra_fields, at)))
        elif event.name == MARK:
            found.append((at, at))
    return [each for _, each in sorted(found, key=lambda each: each[0])]


def _as_torch_tells(fields: Any, at_ns: int) -> dict[str, Any]:
    return {
        "action": "alloc" if fields.alloc_size > 0 else "free_requested",
        "addr": fields.ptr,
        "size": abs(fields.alloc_size),
        "stream": 0,
        "time_us": at_ns // 1000,
    }


def _write(snapshot: dict[str, Any], path: Path) -> None:
    with gzip.open(path, "wb", compresslevel=GZIP_LEVEL) as file:
        pickle.dump(snapshot, file)
