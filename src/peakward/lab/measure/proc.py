"""Reads what Linux says of this machine and of one process. Imports no torch.

Every parser takes text and is pure. `read` is the one effect: it gives None where the file is missing
(another system, a sandbox without /proc) or may not be read.
"""

import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

UNLIMITED_BYTES = 1 << 60
"""The size from which on a limit is none: control groups of version 1 print one near 2^63."""


class Cache(NamedTuple):
    """A cache level that holds data."""

    name: str
    """The name of the level: L1, L2, L3."""
    size_bytes: int


def read(path: str) -> str | None:
    """The file's text, or None where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def cpu_name() -> str:
    """The CPU's name from /proc/cpuinfo; elsewhere from Python's platform module."""
    return parse_cpu_name(read("/proc/cpuinfo") or "") or platform.processor() or platform.machine()


def parse_cpu_name(cpuinfo: str) -> str | None:
    """`model name` on x86, `Model` or `Hardware` on the Arm machines that name themselves."""
    for field in ("model name", "Model", "Hardware"):
        found = re.search(rf"^{field}\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
        if found:
            return found.group(1).strip()
    return None


def cores() -> frozenset[int]:
    """The numbers of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """The number of this process's cores that OpenMP may use: its limit decides a CPU's rates."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(len(cores()), int(limit)) if limit.isdecimal() and int(limit) else len(cores())


def memory_bytes() -> int:
    """The machine's RAM, or the control group's limit where that is lower."""
    limits = [parse_limit(text) for path in _limit_paths() if (text := read(path)) is not None]
    return min([_ram_bytes(), *(limit for limit in limits if limit is not None)])


def _ram_bytes() -> int:
    kibibytes = parse_field(read("/proc/meminfo") or "", "MemTotal")
    if kibibytes is not None:
        return kibibytes * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def available_bytes() -> int:
    """The bytes that may be allocated without swapping, within the control group's limit."""
    kibibytes = parse_field(read("/proc/meminfo") or "", "MemAvailable")
    return memory_bytes() if kibibytes is None else min(memory_bytes(), kibibytes * 1024)


def last_cache_bytes() -> int:
    """The size of core 0's highest cache level; 0 where the kernel does not say (virtual machines)."""
    return max((cache.size_bytes for cache in caches()), default=0)


def caches() -> tuple[Cache, ...]:
    """The caches of core 0 that hold data, the nearest first; none where the kernel does not say."""
    found = []
    for index in range(5):
        folder = f"/sys/devices/system/cpu/cpu0/cache/index{index}"
        level, kind, size = (read(f"{folder}/{name}") for name in ("level", "type", "size"))
        if level and kind and size and kind.strip() != "Instruction":
            found.append(Cache(f"L{level.strip()}", parse_size(size)))
    return tuple(sorted(found))


def parse_size(text: str) -> int:
    """Bytes from a size such as "32768K" or "32M"."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    digits = text.strip().rstrip("KMG")
    return int(digits) * units.get(text.strip()[-1], 1)


def parse_field(text: str, name: str) -> int | None:
    """The integer after `name` (and a colon, if any) at the start of a line."""
    found = re.search(rf"^{re.escape(name)}:?\s+(\d+)", text, re.MULTILINE)
    return int(found.group(1)) if found else None


def parse_limit(text: str) -> int | None:
    """A control group's memory limit in bytes; None for `max` and for version 1's huge number."""
    value = text.strip()
    if not value.isdigit() or int(value) >= UNLIMITED_BYTES:
        return None
    return int(value)


def parse_groups(cgroup: str) -> tuple[str, ...]:
    """The folders of the process's memory group, nearest first, from /proc/self/cgroup.

    Both hierarchies are included. The roots are included too, because a container often sees its own
    group mounted as the root.
    """
    folders: list[str] = []
    for line in cgroup.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root = "/sys/fs/cgroup"
        elif "memory" in controllers.split(","):
            root = "/sys/fs/cgroup/memory"
        else:
            continue
        parts = [part for part in path.split("/") if part]
        folders += ["/".join([root, *parts[:n]]) for n in range(len(parts), -1, -1)]
    return tuple(folders)


def _group_paths(names: Iterable[str]) -> list[str]:
    folders = parse_groups(read("/proc/self/cgroup") or "")
    return [f"{folder}/{name}" for name in names for folder in folders]


def _limit_paths() -> list[str]:
    return _group_paths(("memory.max", "memory.limit_in_bytes"))


def file_system(device: int) -> str | None:
    """The kind of file system on a device (`st_dev`): ext4, xfs, tmpfs; None where it is not known."""
    return parse_file_system(
        read("/proc/self/mountinfo") or "", f"{os.major(device)}:{os.minor(device)}"
    )


def parse_file_system(mountinfo: str, device: str) -> str | None:
    """The type of the mount from a device "major:minor" (proc(5): the field after " - ")."""
    for line in mountinfo.splitlines():
        mount, _, source = line.partition(" - ")
        if mount.split()[2:3] == [device] and source:
            return source.split()[0]
    return None


def oom_kills() -> dict[str, int]:
    """Every counter of the kernel's OOM kills that can be read here, by file."""
    paths = ["/proc/vmstat", *_group_paths(("memory.events", "memory.oom_control"))]
    counts = {path: parse_field(read(path) or "", "oom_kill") for path in paths}
    return {path: count for path, count in counts.items() if count is not None}


def rose(before: dict[str, int], after: dict[str, int]) -> bool:
    """Whether any counter grew."""
    return any(count > before.get(path, count) for path, count in after.items())


def status_bytes(field: str, pid: int | str = "self") -> int | None:
    """A field of /proc/PID/status such as VmRSS, VmHWM or VmData."""
    kibibytes = parse_field(read(f"/proc/{pid}/status") or "", field)
    return None if kibibytes is None else kibibytes * 1024
