"""What /proc and the control groups say, from texts of real machines."""

import os

import pytest

from peakward.lab.measure import proc

X86 = "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 7763\nstepping : 1\n"
GRAVITON = "processor\t: 0\nBogoMIPS\t: 2100.00\nCPU implementer\t: 0x41\n"
RASPBERRY = "processor\t: 0\nBogoMIPS\t: 108.00\n\nModel\t\t: Raspberry Pi 5 Model B Rev 1.0\n"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (X86, "AMD EPYC 7763"),
        (GRAVITON, None),
        (RASPBERRY, "Raspberry Pi 5 Model B Rev 1.0"),
        ("", None),
    ],
)
def test_cpu_name(text, name):
    assert proc.parse_cpu_name(text) == name


def test_a_machine_without_proc_still_has_a_name_and_memory(monkeypatch):
    monkeypatch.setattr(proc, "read", lambda path: None)
    assert proc.cpu_name()
    assert proc.memory_bytes() > 0
    assert proc.available_bytes() == proc.memory_bytes()
    assert proc.caches() == ()
    assert proc.last_cache_bytes() == 0
    assert proc.file_system(0) is None
    assert proc.oom_kills() == {}
    assert proc.status_bytes("VmRSS") is None


@pytest.mark.parametrize(
    ("text", "limit"),
    [("max\n", None), ("9223372036854771712\n", None), ("2147483648\n", 2**31), ("", None)],
)
def test_control_group_limit(text, limit):
    assert proc.parse_limit(text) == limit


def test_groups_of_both_hierarchies_nearest_first():
    version_2 = "0::/user.slice/app\n"
    version_1 = "9:name=systemd:/\n4:cpu,memory:/docker/abc\n0::/\n"
    assert proc.parse_groups(version_2) == (
        "/sys/fs/cgroup/user.slice/app",
        "/sys/fs/cgroup/user.slice",
        "/sys/fs/cgroup",
    )
    assert proc.parse_groups(version_1) == (
        "/sys/fs/cgroup/memory/docker/abc",
        "/sys/fs/cgroup/memory/docker",
        "/sys/fs/cgroup/memory",
        "/sys/fs/cgroup",
    )


def test_the_group_limit_wins_where_it_is_lower(monkeypatch):
    files = {
        "/proc/self/cgroup": "0::/box\n",
        "/proc/meminfo": "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\n",
        "/sys/fs/cgroup/box/memory.max": "4294967296\n",
        "/sys/fs/cgroup/memory.max": "max\n",
    }
    monkeypatch.setattr(proc, "read", files.get)
    assert proc.memory_bytes() == 2**32
    assert proc.available_bytes() == 2**32
    files["/sys/fs/cgroup/box/memory.max"] = "max\n"
    assert proc.memory_bytes() == 2**34
    assert proc.available_bytes() == 2**33


def test_oom_kills_by_file(monkeypatch):
    files = {
        "/proc/vmstat": "nr_free_pages 7\noom_kill 3\n",
        "/proc/self/cgroup": "0::/box\n",
        "/sys/fs/cgroup/box/memory.events": "low 0\noom 2\noom_kill 1\noom_group_kill 9\n",
    }
    monkeypatch.setattr(proc, "read", files.get)
    before = proc.oom_kills()
    assert before == {"/proc/vmstat": 3, "/sys/fs/cgroup/box/memory.events": 1}
    assert not proc.rose(before, proc.oom_kills())
    files["/sys/fs/cgroup/box/memory.events"] = "oom_kill 2\n"
    assert proc.rose(before, proc.oom_kills())


def test_a_counter_that_appears_has_not_risen():
    assert not proc.rose({}, {"/proc/vmstat": 5})


@pytest.mark.parametrize(("text", "size"), [("32768K\n", 2**25), ("32M", 2**25), ("64\n", 64)])
def test_cache_size(text, size):
    assert proc.parse_size(text) == size


def test_own_status():
    assert proc.status_bytes("VmRSS") > 2**20
    assert proc.status_bytes("VmRSS", os.getpid()) > 2**20
    assert proc.status_bytes("NoSuchField") is None
    assert proc.status_bytes("VmRSS", 2**30) is None


def test_caches_hold_data_and_come_nearest_first(monkeypatch):
    folder = "/sys/devices/system/cpu/cpu0/cache/index"
    indexes = [("3", "Unified", "32768K"), ("1", "Data", "32K"), ("1", "Instruction", "64K")]
    files = {
        f"{folder}{index}/{name}": f"{text}\n"
        for index, texts in enumerate(indexes)
        for name, text in zip(("level", "type", "size"), texts, strict=True)
    }
    monkeypatch.setattr(proc, "read", files.get)
    assert proc.caches() == (("L1", 32 * 2**10), ("L3", 32 * 2**20))
    assert proc.last_cache_bytes() == 32 * 2**20


MOUNTS = """\
23 28 0:21 / /proc rw,nosuid shared:12 - proc proc rw
28 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw,discard
30 28 0:27 / /dev/shm rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("device", "kind"), [("259:1", "ext4"), ("0:27", "tmpfs"), ("59:1", None), ("8:0", None)]
)
def test_file_system_of_a_device(device, kind):
    assert proc.parse_file_system(MOUNTS, device) == kind


def test_file_system_of_a_line_cut_short():
    assert proc.parse_file_system("28 1 259:1 / / rw\n\n28", "259:1") is None
