"""Reading a scratch file past the page cache and from it."""

import errno
import fcntl
import os

import pytest

from peakward.lab.measure.calibration import disk
from peakward.lab.measure.calibration.timing import NotMeasurableError, outcome
from peakward.records.calibration import Absence, DiskRate

pytestmark = pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="needs O_DIRECT")


@pytest.fixture
def small(monkeypatch, tmp_path):
    """A file of 16 KiB, in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(disk, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(disk, "N_BLOCKS", 4)
    monkeypatch.setattr(disk, "PAGE_BYTES", 2048)
    monkeypatch.setattr(disk, "N_PAGES", 3)
    return tmp_path


@pytest.fixture
def drive(monkeypatch):
    """A drive whose file system takes O_DIRECT, and the reads put to it: (bytes, place, past the
    cache)."""
    reads = []
    read, control = os.preadv, fcntl.fcntl
    direct = set()

    def preadv(descriptor, buffers, place):
        n = read(descriptor, buffers, place)
        reads.append((n, place, descriptor in direct))
        return n

    def fake(descriptor, command, *given):
        if command == fcntl.F_SETFL:
            (direct.add if given[0] & os.O_DIRECT else direct.discard)(descriptor)
            return 0
        return control(descriptor, command, *given)

    monkeypatch.setattr(disk.os, "preadv", preadv)
    monkeypatch.setattr(disk.fcntl, "fcntl", fake)
    monkeypatch.setattr(disk.proc, "file_system", lambda device: "ext4")
    return reads


def test_the_file_and_pages_of_it_are_read_past_the_cache_then_from_it(small, drive):
    found = [outcome(each, "disk") for each in disk.attempts("cpu")]
    assert [(each.source, each.size_bytes, each.block_bytes) for each in found] == [
        ("disk", 16384, 4096),
        ("disk", 16384, 2048),
        ("page cache", 16384, 4096),
        ("page cache", 16384, 2048),
    ]
    assert all(each.bytes_per_s > 0 for each in found)
    blocks = range(0, 16384, 4096)
    assert drive[:4] == [(4096, place, True) for place in blocks]
    for scattered, past in ((drive[4:7], True), (drive[19:], False)):
        assert {(n, direct) for n, _, direct in scattered} == {(2048, past)}
        places = {place for _, place, _ in scattered}
        assert len(places) == 3
        assert places <= set(range(0, 16384, 2048))
    # From the cache the file is read once before, so that all of it is in memory.
    assert drive[7:19] == [(4096, place, False) for place in blocks] * 3
    assert list(small.iterdir()) == []


def test_the_rate_is_the_median_block_s(small):
    assert disk._rate("disk", 4096, [1.0, 4.0, 2.0, 9.0, 0.5]).bytes_per_s == 4096 / 2.0


def test_a_folder_in_memory_has_no_disk_but_has_a_page_cache(small, drive, monkeypatch):
    monkeypatch.setattr(disk.proc, "file_system", lambda device: "tmpfs")
    *absent, rate, page = (outcome(each, "disk") for each in disk.attempts("cpu"))
    assert absent == [
        Absence(
            subject="disk", figure=figure, reason="the working directory lies in memory (tmpfs)"
        )
        for figure in ("disk", "disk, scattered pages")
    ]
    assert isinstance(rate, DiskRate)
    assert isinstance(page, DiskRate)
    assert not any(past for _, _, past in drive)


def test_a_file_system_that_refuses_is_named(small, monkeypatch):
    def refuse(descriptor, command, *given):
        if command == fcntl.F_SETFL:
            raise OSError(errno.EINVAL, "Invalid argument")
        return 0

    monkeypatch.setattr(disk.fcntl, "fcntl", refuse)
    monkeypatch.setattr(disk.proc, "file_system", lambda device: "odd")
    with (
        pytest.raises(NotMeasurableError, match=r"\(odd\) offers no way past .*Invalid argument"),
        (small / "file").open("wb") as file,
        disk.past_the_cache(file.fileno()),
    ):
        pass


def test_a_system_without_the_way_says_so(small, monkeypatch):
    monkeypatch.delattr(os, "O_DIRECT")
    with pytest.raises(NotMeasurableError, match="O_DIRECT"), disk.past_the_cache(0):
        pass
