"""Which categories and names of a PyTorch trace mean what.

The categories are Kineto's activity types; torch 1.x capitalised them and wrote Operator and Runtime.
"""

from typing import Literal

from peakward.traces.table import Direction, GpuKind, HostKind

_GPU = {
    "kernel": GpuKind.KERNEL,
    "concurrent_kernel": GpuKind.KERNEL,
    "gpu_memcpy": GpuKind.COPY,
    "memcpy": GpuKind.COPY,
    "gpu_memset": GpuKind.SET,
    "memset": GpuKind.SET,
}

_HOST = {
    "cpu_op": HostKind.OP,
    "operator": HostKind.OP,
    "hpu_op": HostKind.OP,
    "runtime": HostKind.CALL,
    "driver": HostKind.CALL,
    "user_annotation": HostKind.RANGE,
    "python_function": HostKind.PYTHON,
    "overhead": HostKind.OVERHEAD,
}

_SILENT = frozenset(
    {
        "trace",
        "gpu_user_annotation",
        "cuda_sync",
        "cuda_event",
        "cuda_profiler_range",
        "external_correlation",
        "cpu_instant_event",
        "ac2g",
        "fwdbwd",
        "async_cpu_to_gpu",
    }
)
"""Neither work nor something that the host did: spans of the profiler, ranges and waits that it
projects onto a stream, ties between events."""

_DIRECTIONS = {
    "htod": Direction.HOST_TO_DEVICE,
    "hosttodevice": Direction.HOST_TO_DEVICE,
    "dtoh": Direction.DEVICE_TO_HOST,
    "devicetohost": Direction.DEVICE_TO_HOST,
    "dtod": Direction.DEVICE_TO_DEVICE,
    "devicetodevice": Direction.DEVICE_TO_DEVICE,
    "ptop": Direction.PEER,
    "peertopeer": Direction.PEER,
    "htoh": Direction.HOST_TO_HOST,
    "hosttohost": Direction.HOST_TO_HOST,
}


def kind_of(category: str) -> GpuKind | HostKind | Literal["unknown"] | None:
    """What an event of this category is: None where it is rightly left aside, "unknown" where the
    category is not known here."""
    lower = category.lower()
    if lower in _GPU:
        return _GPU[lower]
    if lower in _HOST:
        return _HOST[lower]
    if lower.endswith(("_runtime", "_driver")):
        return HostKind.CALL
    return None if lower in _SILENT else "unknown"


def direction_of(name: str) -> Direction:
    """Of a copy: "Memcpy HtoD (Pageable -> Device)", HIP's "CopyHostToDevice"."""
    squeezed = name.lower().replace("_", "")
    for sign, direction in _DIRECTIONS.items():
        if sign in squeezed:
            return direction
    return Direction.UNKNOWN
