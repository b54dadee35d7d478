"""The meaning of categories and names in a PyTorch trace.

The categories are Kineto's activity types; torch 1.x capitalised them and wrote Operator and Runtime.
"""

import re
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
"""Neither work nor host activity: spans of the profiler, ranges and waits that it projects onto a stream,
links between events."""

_FOREIGN = (
    (re.compile(r"hpu_"), "Intel Gaudi (HPU)"),
    (re.compile(r"xpu_"), "an Intel GPU (XPU)"),
    (re.compile(r"mtia_"), "Meta's MTIA"),
    (re.compile(r"(?:async_)?npu|enqueue$|dequeue$|async_task_queue$"), "Ascend (NPU)"),
    (re.compile(r"privateuse1_"), "an accelerator outside torch (PrivateUse1)"),
)
"""Beginnings of categories from accelerators of other vendors than NVIDIA and AMD. Ascend's are those of
torch_npu, the others Kineto's."""
_FOREIGN_OPERATORS = {
    "npu::": "Ascend (NPU)",
    "hpu::": "Intel Gaudi (HPU)",
    "xpu::": "an Intel GPU (XPU)",
    "mtia::": "Meta's MTIA",
    "xla::": "a TPU (XLA)",
    "mlu::": "Cambricon (MLU)",
    "torch_mlu::": "Cambricon (MLU)",
    "musa::": "Moore Threads (MUSA)",
}
"""Namespaces of their operators."""
_FOREIGN_DEVICES = (
    (re.compile(r"Ascend|CANN$"), "Ascend (NPU)"),
    (re.compile(r"(?:.* )?(?:Gaudi|Habana|HL-\d)"), "Intel Gaudi (HPU)"),
    (re.compile(r"Intel\(R\) .*(?:GPU|Graphics)"), "an Intel GPU (XPU)"),
    (re.compile(r"MTIA\b"), "Meta's MTIA"),
    (re.compile(r"TPU\b"), "a TPU (XLA)"),
    (re.compile(r"MLU\d"), "Cambricon (MLU)"),
    (re.compile(r"MTT "), "Moore Threads (MUSA)"),
)
"""Names of the devices themselves, and of the processes that stand for them."""

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
    """The kind of an event of this category; None where it is rightly left out, "unknown" where the category
    is not known."""
    lower = category.lower()
    if lower in _GPU:
        return _GPU[lower]
    if lower in _HOST:
        return _HOST[lower]
    if lower.endswith(("_runtime", "_driver")):
        return HostKind.CALL
    return None if lower in _SILENT else "unknown"


def direction_of(name: str) -> Direction:
    """The direction of a copy: "Memcpy HtoD (Pageable -> Device)", HIP's "CopyHostToDevice"."""
    squeezed = name.lower().replace("_", "")
    for sign, direction in _DIRECTIONS.items():
        if sign in squeezed:
            return direction
    return Direction.UNKNOWN


def foreign_category(category: str) -> str | None:
    """The unsupported accelerator that has events of this category, or None."""
    lower = category.lower()
    return next((maker for begin, maker in _FOREIGN if begin.match(lower)), None)


def foreign_operator(name: str) -> str | None:
    """The unsupported accelerator that has an operator of this name, or None."""
    return _FOREIGN_OPERATORS.get(name[: name.find("::") + 2])


def foreign_device(name: str) -> str | None:
    """The unsupported accelerator with this device name, or with this name for its process, or None."""
    return next((maker for begin, maker in _FOREIGN_DEVICES if begin.match(name)), None)
