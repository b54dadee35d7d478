"""Which study a word of the command line means."""

from pathlib import Path

import pytest

from peakward.records.errors import PeakwardError
from peakward.store.studies import StudyEntry, id_of

DB = Path("peakward.db")


def entries(*ids: str) -> list[StudyEntry]:
    return [StudyEntry(id=id_, name="run", title="", started_at="", complete=True) for id_ in ids]


@pytest.mark.parametrize(
    ("ref", "id_"),
    [
        ("last", "abc1"),
        ("abc1", "abc1"),
        ("abc2", "abc2"),
        ("b", "b"),
        ("q", "qrs"),
        ("abc", "abc"),
    ],
)
def test_a_reference_is_an_id_its_only_beginning_or_last(ref: str, id_: str) -> None:
    assert id_of(ref, entries("abc1", "abc2", "b", "bc", "qrs", "abc"), DB) == id_


@pytest.mark.parametrize(
    ("ref", "told"),
    [
        ("ab", "got 'ab', 2 that begin so: name one, such as abc1, abc2"),
        ("", "got '', 3 that begin so"),
        ("x", "got 'x', no such one: name one, such as abc1, abc2, q"),
        ("%", "got '%', no such one"),
    ],
)
def test_any_other_is_refused_with_the_ids_there_are(ref: str, told: str) -> None:
    with pytest.raises(PeakwardError) as caught:
        id_of(ref, entries("abc1", "abc2", "q"), DB)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_empty_database_says_how_to_fill_it() -> None:
    with pytest.raises(PeakwardError, match=r"got none stored yet: `peakward run` makes one"):
        id_of("last", [], DB)
