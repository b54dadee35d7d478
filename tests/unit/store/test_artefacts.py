"""Files beside the database: whole, once each, never overwritten."""

import errno
import hashlib
import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from peakward.records.errors import PeakwardError
from peakward.store import artefacts


@pytest.fixture
def make_file(tmp_path):
    """make_file(data): a file of its own that holds it."""

    def make(data=b"a trace", name="t.json.gz"):
        file = tmp_path / name
        file.write_bytes(data)
        return file

    return make


def folder(path):
    return path.with_name(f"{path.name}.files")


def test_a_file_is_moved_and_named_after_its_content(path, make_file):
    file = make_file(b"a trace")
    name = artefacts.keep(path, file)
    assert name == hashlib.sha256(b"a trace").hexdigest()[:16] + ".json.gz"
    assert not file.exists()
    assert artefacts.path_of(path, name) == folder(path) / name
    assert artefacts.path_of(path, name).read_bytes() == b"a trace"
    assert [each.name for each in folder(path).iterdir()] == [name]


def test_a_snapshot_keeps_what_its_name_ends_in(path, make_file):
    name = artefacts.keep(path, make_file(b"a snapshot", "memory.pickle.gz"))
    assert name.endswith(".pickle.gz")
    assert artefacts.path_of(path, name).read_bytes() == b"a snapshot"
    assert artefacts.keep(path, make_file(b"a snapshot", "again.pickle.gz")) == name


def test_the_same_content_is_kept_once(path, make_file):
    name = artefacts.keep(path, make_file())
    before = artefacts.path_of(path, name).stat()
    again = make_file(name="again.json.gz")
    assert artefacts.keep(path, again) == name
    assert not again.exists()
    after = artefacts.path_of(path, name).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert artefacts.keep(path, make_file(b"another")) != name
    assert len(list(folder(path).iterdir())) == 2


def test_a_damaged_file_of_that_name_is_neither_trusted_nor_overwritten(path, make_file):
    kept = artefacts.path_of(path, artefacts.keep(path, make_file()))
    kept.write_bytes(b"damaged")
    file = make_file()
    with pytest.raises(PeakwardError, match=r"expected .* to hold what it is named after"):
        artefacts.keep(path, file)
    assert (kept.read_bytes(), file.read_bytes()) == (b"damaged", b"a trace")


@pytest.fixture
def another_file_system(monkeypatch):
    """Where the files to keep lie: no rename leads out of it."""
    rename = os.rename

    def within(source, target, **options):
        if Path(source).name == "t.json.gz":
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return rename(source, target, **options)

    monkeypatch.setattr(os, "rename", within)


def test_from_another_file_system_it_is_copied(path, make_file, another_file_system):
    file = make_file()
    name = artefacts.keep(path, file)
    assert artefacts.path_of(path, name).read_bytes() == b"a trace"
    assert [each.name for each in folder(path).iterdir()] == [name]
    assert not file.exists()


def test_a_copy_that_fails_leaves_nothing_half_written(
    path, make_file, another_file_system, monkeypatch
):
    def full(source, target):
        Path(target).write_bytes(b"a tr")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    file = make_file()
    with pytest.raises(PeakwardError, match='got "No space left on device"'):
        artefacts.keep(path, file)
    assert file.read_bytes() == b"a trace"
    assert list(folder(path).iterdir()) == []


def test_a_file_that_is_not_there(path, tmp_path):
    with pytest.raises(PeakwardError, match='got "No such file or directory"'):
        artefacts.keep(path, tmp_path / "none.json.gz")


def test_a_kept_file_that_has_gone_says_where_it_was(path):
    name = "0" * 16 + ".json.gz"
    with pytest.raises(PeakwardError, match=r"expected a file at .*peakward\.db\.files/0{16}"):
        artefacts.path_of(path, name)


@pytest.mark.parametrize(
    "name", ["", "../../etc/passwd", "0" * 16, "0" * 16 + ".json.gz\n", "X.json.gz"]
)
def test_only_names_that_were_given_are_looked_up(path, name):
    with pytest.raises(PeakwardError, match="expected the name of a kept file"):
        artefacts.path_of(path, name)


def test_it_has_the_rights_that_the_umask_grants(tmp_path):
    before = os.umask(0o027)
    try:
        artefacts.write(tmp_path / "a", b"one")
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "a").read_bytes() == b"one"


def test_ctrl_c_leaves_what_was_there_and_nothing_beside_it(tmp_path, monkeypatch):
    (path := tmp_path / "a").write_bytes(b"one")
    monkeypatch.setattr(Path, "replace", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        artefacts.write(path, b"two")
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]
