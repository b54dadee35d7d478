"""Whole or not at all."""

import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from peakward.store import whole_file


def test_it_has_the_rights_that_the_umask_grants(tmp_path):
    before = os.umask(0o027)
    try:
        whole_file.write(tmp_path / "a", b"one")
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "a").read_bytes() == b"one"


def test_ctrl_c_leaves_what_was_there_and_nothing_beside_it(tmp_path, monkeypatch):
    (path := tmp_path / "a").write_bytes(b"one")
    monkeypatch.setattr(Path, "replace", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        whole_file.write(path, b"two")
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]
