"""A file that is there whole or not at all."""

import os
from pathlib import Path

import pytest

from peakward.lab.measure.process import written_beside
from peakward.records.errors import PeakwardError


def test_what_was_not_renamed_is_gone_with_all_beside_it(tmp_path):
    with written_beside(tmp_path / "t.json.gz") as scratch:
        scratch.write_bytes(b"half")
        scratch.with_name("other").write_bytes(b"")
    assert list(tmp_path.iterdir()) == []


def test_what_was_renamed_stays(tmp_path):
    path = tmp_path / "t.json.gz"
    with written_beside(path) as scratch:
        assert (scratch.name, scratch.is_absolute()) == (path.name, True)
        scratch.write_bytes(b"whole")
        scratch.rename(path)
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"whole"]


def test_a_relative_path_is_beside_itself(in_tmp):
    with written_beside(Path("t.json.gz")) as scratch:
        assert scratch.parent.parent == in_tmp


def test_nothing_is_overwritten(tmp_path):
    path = tmp_path / "t.json.gz"
    path.write_bytes(b"mine")
    with pytest.raises(PeakwardError, match="expected a new file to write, got one that exists"):
        written_beside(path).__enter__()
    assert path.read_bytes() == b"mine"


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(PeakwardError, match="expected a folder that can be written"):
        written_beside(tmp_path / "none" / "t.json.gz").__enter__()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(PeakwardError, match="Permission denied"):
        written_beside(tmp_path / "t.json.gz").__enter__()
