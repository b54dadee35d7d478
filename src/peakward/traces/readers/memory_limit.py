"""The memory that this process may still use."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

_UNLIMITED = 1 << 60
"""cgroup v1 writes "no limit" as a number near 2**63."""


def free_bytes() -> int | None:
    """The smallest limit of the machine, the process's address space and its control groups; None where none
    of them can be read."""
    return min((*_machine(), *_address_space(), *_control_groups()), default=None)


def _machine() -> Iterator[int]:
    meminfo = _text("/proc/meminfo")
    if match := re.search(r"^MemAvailable:\s*(\d+) kB", meminfo, re.MULTILINE):
        yield int(match[1]) * 1024
    elif hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _address_space() -> Iterator[int]:
    try:
        import resource
    except ImportError:
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    pages = _text("/proc/self/statm").split()
    if limit != resource.RLIM_INFINITY and pages:
        yield max(limit - int(pages[0]) * os.sysconf("SC_PAGE_SIZE"), 0)


def _control_groups() -> Iterator[int]:
    """The limits of this process's control group and its parents, cgroup v2 or v1."""
    for line in _text("/proc/self/cgroup").splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers == "":
            root, most, used = "/sys/fs/cgroup", "memory.max", "memory.current"
        elif controllers == "memory":
            root, most = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
            used = "memory.usage_in_bytes"
        else:
            continue
        group = Path(root + name)
        # Inside a container the path is the host's, and the group lies at the root.
        for each in (group, *group.parents):
            limit, taken = _text(each / most).strip(), _text(each / used).strip()
            if limit.isdigit() and taken.isdigit() and int(limit) < _UNLIMITED:
                yield max(int(limit) - int(taken) + _reclaimable(each), 0)


def _reclaimable(group: Path) -> int:
    """The page cache that the group's usage counts and the kernel drops on demand."""
    match = re.search(
        r"^(?:total_)?inactive_file (\d+)$", _text(group / "memory.stat"), re.MULTILINE
    )
    return int(match[1]) if match else 0


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
