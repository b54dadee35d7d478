from pathlib import Path
from unittest.mock import patch

import pytest

from peakward.traces.readers import memory_limit
from peakward.traces.readers.memory_limit import free_bytes

MIB = 1 << 20


def with_files(files):
    """Pretends that these files are all there are."""
    return patch.object(memory_limit, "_text", lambda path: files.get(str(path), ""))


def test_here():
    assert free_bytes() > 16 * MIB


def test_what_the_machine_has_available():
    with with_files({"/proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    4096 kB\n"}):
        assert free_bytes() == 4 * MIB


@pytest.mark.parametrize(
    ("cgroup", "root", "names"),
    [
        ("0::/a/b\n", "/sys/fs/cgroup", ("memory.max", "memory.current")),
        (
            "3:cpu:/x\n4:memory:/a/b\n",
            "/sys/fs/cgroup/memory",
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ),
    ],
)
@pytest.mark.parametrize("group", ["/a/b", "/a", ""])
def test_the_tightest_control_group(cgroup, root, names, group):
    files = {
        "/proc/meminfo": "MemAvailable: 999999 kB",
        "/proc/self/cgroup": cgroup,
        f"{root}/a/b/{names[0]}": "max\n" if group != "/a/b" else "",
        f"{root}{group}/{names[0]}": f"{9 * MIB}\n",
        f"{root}{group}/{names[1]}": f"{5 * MIB}\n",
        f"{root}{group}/memory.stat": f"anon 1\ninactive_file {2 * MIB}\nactive_file 1\n",
    }
    with with_files(files):
        assert free_bytes() == 6 * MIB


def test_the_address_space():
    resource = pytest.importorskip("resource")
    files = {"/proc/meminfo": "MemAvailable: 999999 kB", "/proc/self/statm": "256 1 1"}
    with (
        with_files(files),
        patch.object(resource, "getrlimit", lambda _: (9 * MIB, 9 * MIB)),
        patch.object(memory_limit.os, "sysconf", lambda _: 4096),
    ):
        assert free_bytes() == 8 * MIB


def test_nothing_to_ask():
    with with_files({}), patch.object(memory_limit.os, "sysconf_names", {}):
        assert free_bytes() is None


def test_a_file_that_is_not_there(tmp_path):
    assert memory_limit._text(tmp_path / "absent") == ""
    assert memory_limit._text(Path(tmp_path)) == ""
