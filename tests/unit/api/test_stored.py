"""A word of the command line to a stored study."""

import pytest

from peakward.api.stored import load
from peakward.records import codec
from peakward.records.errors import PeakwardError
from peakward.store.database import Store


@pytest.fixture
def kept(in_tmp, make_study, make_measurement):
    """Two studies in a database; the newer comes second."""
    older = make_study(make_measurement(8), started_at="2026-01-01T00:00:00+00:00")
    newer = make_study(make_measurement(16), started_at="2026-01-02T00:00:00+00:00")
    with Store.open(in_tmp / "kept.db") as store:
        store.add_study(older)
        store.add_study(newer)
    return older, newer


def test_an_id_its_beginning_and_last_are_looked_up_in_the_database(kept):
    older, newer = kept
    assert load(older.id, "kept.db") == older
    assert load(older.id[:12], "kept.db") == older
    assert load("last", "kept.db") == newer


def test_a_database_means_its_last_study_or_the_one_named(kept):
    older, newer = kept
    assert load("kept.db", "elsewhere.db") == newer
    assert load(f"kept.db:{older.id}", "elsewhere.db") == older


def test_a_json_file_is_the_study_it_holds(kept, in_tmp):
    older, _ = kept
    (in_tmp / "study.json").write_bytes(codec.to_json(older))
    assert load("study.json", "elsewhere.db") == older


@pytest.mark.parametrize("reference", ["last", "0123abc"])
def test_no_such_study_is_one_line(reference, in_tmp):
    with pytest.raises(PeakwardError, match=r"expected .*none\.db"):
        load(reference, "none.db")


@pytest.mark.parametrize("reference", ["before.db", "before.db:last", "../before", "a/before"])
def test_a_file_that_is_not_there_is_not_taken_for_an_id(reference, kept):
    with pytest.raises(PeakwardError, match=r"got '.*before.*', which is no file and cannot be"):
        load(reference, "kept.db")


@pytest.mark.parametrize("content", [b"{}", b"\xff\xfe", b"", b'{"schema_version":99,"record":{}}'])
def test_a_file_that_holds_no_study_is_named(content, in_tmp):
    (in_tmp / "study.json").write_bytes(content)
    with pytest.raises(PeakwardError, match=r"study\.json: expected") as caught:
        load("study.json", "none.db")
    assert "\n" not in str(caught.value)
