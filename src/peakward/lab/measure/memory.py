"""Measures the peak memory of a case, and sets memory limits that end with it."""

import ctypes
import gc
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import torch

from peakward.lab.measure import nvml, proc
from peakward.lab.measure.failure import OverLimitError
from peakward.records.case import DeviceType
from peakward.records.measurement import MemoryUse

GIB = 2**30
SAMPLE_PERIOD_S = 0.01
CPU_RESIDUE_BYTES = GIB // 2
"""The growth of resident memory over a worker's start that is no leak: torch.compile imports some 300
MiB."""
CUDA_RESIDUE_BYTES = 2 * 2**20
"""The bytes allocated beyond a worker's start that are no leak: generator states and the like."""


class Meter(Protocol):
    """Watches memory inside its `with` block; `use` gives the peak since its beginning."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def use(self) -> MemoryUse:
        """The peak since the block began."""


class CudaMeter:
    """The caching allocator's peaks, and the memory that the context holds beside them.

    `idle_bytes` is NVML's figure for the memory used on the device before this process made its
    context; None where NVML cannot say.
    """

    def __init__(self, gpu: nvml.Gpu | None, idle_bytes: int | None) -> None:
        self._gpu = gpu
        self._idle_bytes = idle_bytes

    def __enter__(self) -> Self:
        torch.cuda.reset_peak_memory_stats()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def use(self) -> MemoryUse:
        """See Meter."""
        return MemoryUse(
            peak_allocated_bytes=torch.cuda.max_memory_allocated(),
            peak_reserved_bytes=torch.cuda.max_memory_reserved(),
            context_bytes=context_bytes(self._gpu, self._idle_bytes),
        )


def context_bytes(gpu: nvml.Gpu | None, idle_bytes: int | None) -> int | None:
    """The device memory that this process holds outside the caching allocator.

    It is the growth of the device's used memory since before the context, less the memory reserved now:
    the context itself, loaded kernels, library handles. Memory that another process took or freed
    meanwhile makes it wrong by that amount.
    """
    if gpu is None or idle_bytes is None:
        return None
    grown = nvml.memory(gpu).used - idle_bytes
    return max(0, grown - torch.cuda.memory_reserved())


class CpuMeter:
    """The growth of the resident set, from the kernel's high-water mark or, failing that, by sampling."""

    def __enter__(self) -> Self:
        self._before = _resident_bytes()
        self._sampled = self._before
        self._exact = _reset_high_water()
        self._stop = threading.Event()
        if not self._exact:
            self._thread = threading.Thread(target=self._watch, name="peakward-rss", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if not self._exact:
            self._thread.join()

    def use(self) -> MemoryUse:
        """See Meter."""
        peak = proc.status_bytes("VmHWM") if self._exact else self._sampled
        peak = max(peak or 0, _resident_bytes())
        return MemoryUse(peak_allocated_bytes=max(0, peak - self._before))

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_PERIOD_S):
            self._sampled = max(self._sampled, _resident_bytes())


def _resident_bytes() -> int:
    """The resident bytes of this process; its maximum so far where there is no /proc."""
    now = proc.status_bytes("VmRSS")
    return now if now is not None else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _reset_high_water() -> bool:
    """Sets VmHWM to the present resident set (proc(5), clear_refs); False where forbidden."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


@contextmanager
def limited(
    device_type: DeviceType, limit_bytes: int | None, *, context_bytes: int | None
) -> Iterator[None]:
    """Keeps the process under the limit inside the block; None is no limit.

    On CUDA the allocator may reserve the limit less the context. On a CPU the kernel refuses to grow
    the process's writable data (RLIMIT_DATA, which counts private mappings since Linux 4.7).

    Raises:
        OverLimitError: The context, or the process itself, is already over the limit.
    """
    if limit_bytes is None:
        yield
    elif device_type == "cuda":
        with _limited_allocator(limit_bytes, context_bytes or 0):
            yield
    else:
        with _limited_data(limit_bytes):
            yield


@contextmanager
def _limited_allocator(limit_bytes: int, context_bytes: int) -> Iterator[None]:
    if context_bytes >= limit_bytes:
        raise OverLimitError(
            f"the CUDA context alone takes {context_bytes / GIB:.2f} GiB of the limit of "
            f"{limit_bytes / GIB:.2f} GiB"
        )
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    fraction = min(1.0, (limit_bytes - context_bytes) / total)
    torch.cuda.set_per_process_memory_fraction(fraction)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@contextmanager
def _limited_data(limit_bytes: int) -> Iterator[None]:
    held = proc.status_bytes("VmData")
    if held is not None and held >= limit_bytes:
        raise OverLimitError(
            f"the process's data takes {held / GIB:.2f} GiB of the limit of "
            f"{limit_bytes / GIB:.2f} GiB before the model is built"
        )
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    lowered = limit_bytes if hard == resource.RLIM_INFINITY else min(limit_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (lowered, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def check_fits(use: MemoryUse, limit_bytes: int | None) -> None:
    """Refuses a case that ran, but whose reserved bytes and context are over its limit.

    The context grows while a case loads kernels, after the allocator was given its share.

    Raises:
        OverLimitError: The case is over its limit; the error has both figures.
    """
    if limit_bytes is None or use.peak_reserved_bytes is None:
        return
    context = use.context_bytes or 0
    if use.peak_reserved_bytes + context > limit_bytes:
        raise OverLimitError(
            f"reserved {use.peak_reserved_bytes / GIB:.2f} GiB and a context of "
            f"{context / GIB:.2f} GiB exceed the limit of {limit_bytes / GIB:.2f} GiB"
        )


def release(device_type: DeviceType) -> int:
    """Gives back the memory that a closed case left. Returns the bytes still held, to compare with a
    worker's start: allocated bytes on CUDA, resident bytes on a CPU."""
    gc.collect()
    if device_type == "cuda":
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    _trim_heap()
    return _resident_bytes()


def is_clean(device_type: DeviceType, floor_bytes: int, held_bytes: int) -> bool:
    """Whether memory is back to a worker's floor, within the amount that is known to stay."""
    residue = CUDA_RESIDUE_BYTES if device_type == "cuda" else CPU_RESIDUE_BYTES
    return held_bytes - floor_bytes <= residue


def _trim_heap() -> None:
    """Gives freed heap pages back to the kernel, so that the next case's growth shows (glibc)."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
