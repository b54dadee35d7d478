"""The GPU that CUDA will call device 0, as NVML sees it. Imports no torch, makes no context."""

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import pynvml

from peakward.records.errors import PeakwardError

T = TypeVar("T")


class Gpu(NamedTuple):
    """A device that can be asked about itself."""

    handle: Any
    """Of the device, or of its MIG instance: name, memory, processes."""
    board: Any
    """Of the physical device: sensors and compute capability."""


class Memory(NamedTuple):
    """Of a device or MIG instance, in bytes."""

    total: int
    used: int


class GpuProcess(NamedTuple):
    """A process with a compute context; `used` is None where the driver will not say."""

    pid: int
    used: int | None


def query(function: Callable[..., T], *arguments: Any) -> T | None:
    """What NVML answers, or None where this device, driver or user does not get an answer."""
    try:
        return function(*arguments)
    except pynvml.NVMLError:
        return None


def text(value: str | bytes) -> str:
    """Names are bytes in older versions of nvidia-ml-py and str in newer ones."""
    return value.decode() if isinstance(value, bytes) else value


def visible_gpu() -> Gpu | None:
    """CUDA's device 0 of this process; None where there is no driver, no GPU or none visible.

    Raises:
        PeakwardError: CUDA_VISIBLE_DEVICES names a device in a way that NVML cannot follow.
    """
    if not _initialised():
        return None
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    uuids = [text(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    choice = choose(os.environ.get("CUDA_VISIBLE_DEVICES"), uuids)
    if choice is None:
        return None
    if isinstance(choice, str):
        return gpu_of(choice)
    names = {text(pynvml.nvmlDeviceGetName(handle)) for handle in handles}
    check_order(os.environ.get("CUDA_DEVICE_ORDER"), names)
    gpu = Gpu(handles[choice], handles[choice])
    _refuse_unnamed_instance(gpu)
    return gpu


def gpu_of(name: str) -> Gpu:
    """The device or MIG instance of that UUID.

    Raises:
        PeakwardError: there is none.
    """
    handle = query(pynvml.nvmlDeviceGetHandleByUUID, name.encode()) if _initialised() else None
    if handle is None:
        raise PeakwardError(f"expected a GPU or MIG instance that NVML knows, got {name}")
    board = handle
    if name.startswith("MIG-"):
        board = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    return Gpu(handle, board)


def choose(visible: str | None, uuids: Sequence[str]) -> int | str | None:
    """Which device CUDA makes its first: an index into `uuids`, a MIG instance's UUID, or None.

    As CUDA reads CUDA_VISIBLE_DEVICES (CUDA programming guide, "Environment variables"): indices,
    or UUIDs that may be cut short while they stay unique; everything from the first entry that
    names nothing on is hidden.

    Raises:
        PeakwardError: the first entry has none of these forms, or is a MIG instance in the form
            that drivers before R470 used.
    """
    if visible is None:
        return 0 if uuids else None
    first = visible.split(",")[0].strip()
    if first in ("", "-1", "NoDevFiles"):
        return None
    if first.isdigit():
        return int(first) if int(first) < len(uuids) else None
    if first.startswith("MIG-") and not first.startswith("MIG-GPU-"):
        return first
    if first.startswith("GPU-"):
        matching = [i for i, uuid in enumerate(uuids) if uuid.startswith(first)]
        return matching[0] if len(matching) == 1 else None
    raise PeakwardError(
        f"expected CUDA_VISIBLE_DEVICES to begin with an index, GPU-… or MIG-<uuid>, got {first!r}: "
        "nvidia-smi -L lists them"
    )


def check_order(order: str | None, names: set[str]) -> None:
    """Refuse an order in which NVML's index need not be CUDA's.

    NVML counts by bus; so does CUDA where the variable says so, and Peakward's workers set it
    where it is unset.

    Raises:
        PeakwardError: different GPUs, and an order other than PCI_BUS_ID.
    """
    if len(names) > 1 and order not in (None, "PCI_BUS_ID"):
        raise PeakwardError(
            f"expected CUDA_DEVICE_ORDER=PCI_BUS_ID where the GPUs differ, got {order}: set it, or "
            "name the GPU by UUID in CUDA_VISIBLE_DEVICES"
        )


def uuid(gpu: Gpu) -> str:
    """GPU-… of a device, MIG-… of an instance."""
    return text(pynvml.nvmlDeviceGetUUID(gpu.handle))


def memory(gpu: Gpu) -> Memory:
    """Total and used, the latter without what the driver keeps for itself: version 1 of the call,
    all that drivers before R510 have, counts that in."""
    info = query(pynvml.nvmlDeviceGetMemoryInfo, gpu.handle, pynvml.nvmlMemory_v2)
    info = info or pynvml.nvmlDeviceGetMemoryInfo(gpu.handle)
    return Memory(total=int(info.total), used=int(info.used))


def processes(gpu: Gpu) -> tuple[GpuProcess, ...]:
    """Those with a compute context; empty where they may not be listed."""
    listed = query(pynvml.nvmlDeviceGetComputeRunningProcesses, gpu.handle) or []
    return tuple(GpuProcess(int(each.pid), each.usedGpuMemory) for each in listed)


def _initialised() -> bool:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    return True


def _refuse_unnamed_instance(gpu: Gpu) -> None:
    mode = query(pynvml.nvmlDeviceGetMigMode, gpu.board)
    if mode is not None and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE:
        raise PeakwardError(
            "expected a MIG instance to be named, got a GPU in MIG mode: set CUDA_VISIBLE_DEVICES to "
            "one of the MIG-… UUIDs that nvidia-smi -L lists"
        )


def check_is(gpu: Gpu, cuda_uuid: str) -> None:
    """Refuse a GPU that is not the one CUDA calls device 0; a MIG instance is not checked.

    Raises:
        PeakwardError: they differ.
    """
    own = uuid(gpu)
    if not own.startswith("MIG-") and cuda_uuid.removeprefix("GPU-") not in own:
        raise PeakwardError(
            f"expected CUDA's first device to be {own}, got {cuda_uuid}: name the GPU by UUID in "
            "CUDA_VISIBLE_DEVICES"
        )
