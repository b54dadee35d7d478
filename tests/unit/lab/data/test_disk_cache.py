"""Files of the cache."""

import errno
from pathlib import Path
from unittest.mock import Mock

import pytest

from peakward.lab.data import disk_cache
from peakward.records.errors import PeakwardError


def test_it_lies_in_the_users_cache(cache, monkeypatch, tmp_path):
    assert disk_cache.entry("tokens", "a", ".npy").parent == cache / "tokens"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert disk_cache.folder() == tmp_path / ".cache" / "peakward"


def test_names_differ_by_identity():
    assert disk_cache.entry("tokens", "a", ".npy") == disk_cache.entry("tokens", "a", ".npy")
    assert disk_cache.entry("tokens", "a", ".npy") != disk_cache.entry("tokens", "b", ".npy")


def test_a_file_is_there_whole_and_nothing_beside_it():
    path = disk_cache.entry("tokens", "a", ".npy")
    disk_cache.write(path, b"one")
    disk_cache.write(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("fault", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_what_could_not_be_written_leaves_nothing_on_the_disk(fault, monkeypatch):
    path = disk_cache.entry("tokens", "a", ".npy")
    monkeypatch.setattr(Path, "replace", Mock(side_effect=fault))
    with pytest.raises((PeakwardError, KeyboardInterrupt)):
        disk_cache.write(path, b"one")
    assert list(path.parent.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_said(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(PeakwardError, match=r"cache folder that can be written.*XDG_CACHE_HOME"):
        disk_cache.write(disk_cache.entry("tokens", "a", ".npy"), b"")
