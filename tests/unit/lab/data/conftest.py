"""A cache of its own for each test, and small texts."""

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The folder that peakward keeps tokens in."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "peakward"


@pytest.fixture
def folder(tmp_path):
    """Three documents, one of them longer than a piece."""
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "a.txt").write_text("first\nsecond line\n", encoding="utf-8")
    (folder / "b.md").write_text(
        "".join(f"line {i} naïve\n" for i in range(4000)), encoding="utf-8"
    )
    (folder / "c.txt").write_text("the last", encoding="utf-8")
    (folder / "d.bin").write_bytes(b"\0\1")
    return folder
