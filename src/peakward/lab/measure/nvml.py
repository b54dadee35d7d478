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
    """The device, or its MIG instance: it has a name, memory and processes."""
    board: Any
    """The physical device: it has sensors and a compute capability."""


class DeviceMemory(NamedTuple):
    """The memory of a device or MIG instance, in bytes."""

    total: int
    used: int


class GpuProcess(NamedTuple):
    """A process with a compute context; `used` is None where the driver will not say."""

    pid: int
    used: int | None


def query(function: Callable[..., T], *arguments: Any) -> T | None:
    """NVML's answer; None where this device, driver or user gets none."""
    try:
        return function(*arguments)
    except pynvml.NVMLError:
        return None


def text(value: str | bytes) -> str:
    """Names are bytes in older versions of nvidia-ml-py and str in newer ones."""
    return value.decode() if isinstance(value, bytes) else value


def visible_gpu() -> Gpu | None:
    """CUDA's device 0 of this process; None without a driver, a GPU or a visible one.

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


def visible_names() -> tuple[str, ...]:
    """The names of the devices that CUDA will number from 0 on; empty without a driver or a GPU."""
    if not _initialised():
        return ()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    uuids = [text(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = []
    for entry in map(str, range(len(uuids))) if visible is None else visible.split(","):
        choice = choose(entry, uuids)
        if choice is None:
            break
        handle = handles[choice] if isinstance(choice, int) else gpu_of(choice).handle
        found.append(text(pynvml.nvmlDeviceGetName(handle)))
    return tuple(found)


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
    """The device that CUDA makes its first: an index into `uuids`, a MIG instance's UUID, or None.

    CUDA_VISIBLE_DEVICES is read as CUDA does (CUDA programming guide, "Environment variables"):
    indices, or UUIDs that may be cut short while they stay unique. The first entry that names nothing
    hides itself and all after it.

    Raises:
        PeakwardError: The first entry has none of these forms, or is a MIG instance in the form that
        drivers before R470 used.
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
    """Refuses an order in which NVML's index may differ from CUDA's.

    NVML counts by bus. CUDA does so where the variable says so, and Peakward's workers set it where it
    is unset.

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


def memory(gpu: Gpu) -> DeviceMemory:
    """The total and the used memory, without the driver's own share. Version 1 of the call, the only
    one of drivers before R510, counts that share as used."""
    info = query(pynvml.nvmlDeviceGetMemoryInfo, gpu.handle, pynvml.nvmlMemory_v2)
    info = info or pynvml.nvmlDeviceGetMemoryInfo(gpu.handle)
    return DeviceMemory(total=int(info.total), used=int(info.used))


def processes(gpu: Gpu) -> tuple[GpuProcess, ...]:
    """The processes with a compute context; empty where they may not be listed."""
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
    """Refuses a GPU that is not CUDA's device 0; a MIG instance is not checked.

    Raises:
        PeakwardError: They differ.
    """
    own = uuid(gpu)
    if not own.startswith("MIG-") and cuda_uuid.removeprefix("GPU-") not in own:
        raise PeakwardError(
            f"expected CUDA's first device to be {own}, got {cuda_uuid}: name the GPU by UUID in "
            "CUDA_VISIBLE_DEVICES"
        )
