"""Looking names up."""

import pytest

from peakward.records.errors import PeakwardError
from peakward.records.names import look_up

ROWS = {"Alpha": 1, "alpine": 2, "beta": 3}


def test_a_name_gives_its_row() -> None:
    assert look_up("a row", "alpine", ROWS) == 2


def test_capitals_keep_no_name_from_being_near_but_must_match() -> None:
    with pytest.raises(PeakwardError, match=r"^expected a row, got 'ALPHA': perhaps Alpha"):
        look_up("a row", "ALPHA", ROWS)


def test_what_is_near_to_none_is_answered_with_all() -> None:
    with pytest.raises(PeakwardError, match=r"got 'xyz': there are Alpha, alpine, beta$"):
        look_up("a row", "xyz", ROWS)


def test_of_two_both_are_named() -> None:
    """'gpu' is near to 'cpu' in letters alone."""
    with pytest.raises(PeakwardError, match=r"got 'gpu': there are cpu, cuda$"):
        look_up("a row", "gpu", {"cpu": 1, "cuda": 2})
