"""Computed records on disk: read where nothing changed, computed where anything did."""

import msgspec
import pytest

from peakward.store import kept as room
from peakward.store.kept import PLACE, kept


class Sum(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    total: float


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv(PLACE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def computed():
    return []


def total(parts, computed):
    def make():
        computed.append(parts)
        return Sum(total=sum(parts))

    return kept(parts, Sum, make).total


def test_it_is_computed_once(place, computed):
    assert [total((1, 2), computed), total((1, 2), computed)] == [3, 3]
    assert computed == [(1, 2)]


def test_other_parts_are_another_record(place, computed):
    assert [total((1, 2), computed), total((1, 3), computed)] == [3, 4]


def test_other_source_computes_it_again(place, computed, monkeypatch):
    total((1, 2), computed)
    monkeypatch.setattr(room, "_source", lambda: b"changed")
    total((1, 2), computed)
    assert len(computed) == 2


@pytest.mark.parametrize("damage", [b"", b"{", b'{"schema_version":0,"record":{}}', b"\xff"])
def test_a_damaged_file_is_computed_again(place, computed, damage):
    total((1, 2), computed)
    (file,) = place.iterdir()
    file.write_bytes(damage)
    assert total((1, 2), computed) == 3
    assert total((1, 2), computed) == 3
    assert len(computed) == 2


def test_where_nothing_can_be_kept_it_is_computed(tmp_path, monkeypatch, computed):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(PLACE, str(tmp_path / "file" / "below"))
    assert total((1, 2), computed) == 3


def test_without_a_home_it_is_computed(monkeypatch, computed):
    for name in (PLACE, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(room.Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert total((1, 2), computed) == 3


def test_the_oldest_files_go_first(place, computed, monkeypatch):
    monkeypatch.setattr(room, "MOST_FILES", 2)
    for i in range(5):
        total((i,), computed)
    assert len(list(place.iterdir())) == 2
    total((4,), computed)
    assert len(computed) == 5


def test_the_source_is_all_that_a_prediction_passes_through(tmp_path, monkeypatch):
    package = tmp_path / "package"
    for name in ("prediction", "store"):
        (package / name).mkdir(parents=True)
        (package / name / "a.py").write_text("1")
    monkeypatch.setattr(room, "__file__", str(package / "store" / "kept.py"))
    source = room._source.__wrapped__
    first = source()
    (package / "store" / "a.py").write_text("2")
    assert source() == first
    (package / "prediction" / "a.py").write_text("2")
    assert source() != first
