"""One word to one value."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.cli import values
from peakward.records.errors import PeakwardError

READERS = (
    lambda text: values.split(text, "--x"),
    lambda text: values.whole(text, "--x", low=1, high=100),
    lambda text: values.memory_bytes(text, "--x"),
    lambda text: values.duration_s(text, "--x"),
    lambda text: values.share(text, "--x"),
    lambda text: values.amount(text, "--x", high=1e6),
)

numberish = st.text("0123456789.,eE+-_%naifsmhoxb \n٣½", max_size=30)


@pytest.mark.parametrize("reader", READERS)
@given(text=st.one_of(st.text(max_size=40), numberish))
def test_any_text_is_read_or_refused_on_one_line(reader, text):
    try:
        reader(text)
    except PeakwardError as error:
        assert str(error).startswith("expected ")
        assert "\n" not in str(error)


def test_split_drops_repeats_and_keeps_the_order():
    assert values.split("b, a,b", "--x") == ("b", "a")
    with pytest.raises(PeakwardError, match="for --x, got 'a,,b'"):
        values.split("a,,b", "--x")


@pytest.mark.parametrize(("text", "number"), [("1", 1), ("100", 100), ("1_0", 10), ("+7", 7)])
def test_whole_numbers(text, number):
    assert values.whole(text, "--x", low=1, high=100) == number


@pytest.mark.parametrize("text", ["0", "101", "-1", "1.0", "", "1e2", "9" * 5000, "١", "_1"])
def test_what_is_no_whole_number_within_its_bounds(text):
    with pytest.raises(PeakwardError, match="from 1 to 100 for --x"):
        values.whole(text, "--x", low=1, high=100)


def test_both_bounds_are_written_alike():
    with pytest.raises(PeakwardError, match="from 1,048,576 to 1,073,741,824 for --x"):
        values.whole("0", "--x", low=2**20, high=2**30)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("5m", 300), ("1.5h", 5400), (" 2 m ", 120)]
)
def test_durations(text, seconds):
    assert values.duration_s(text, "--budget") == seconds


@pytest.mark.parametrize(
    "text", ["0", "0.5s", "8d", "-5m", "169h", "..", "nan", "inf", "5 minutes"]
)
def test_what_is_no_duration(text):
    with pytest.raises(PeakwardError, match="for --budget, got"):
        values.duration_s(text, "--budget")


def test_memory_is_in_gib():
    assert values.memory_bytes("24", "--memory-limit") == 24 * 2**30
    assert values.memory_bytes("0.5", "--memory-limit") == 2**29


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "24GiB", "1e300"])
def test_what_is_no_size(text):
    with pytest.raises(PeakwardError, match="GiB"):
        values.memory_bytes(text, "--memory-limit")


@given(st.integers(2**20, 2**50))
def test_bytes_survive_being_written_in_gib(n_bytes):
    assert values.memory_bytes(repr(n_bytes / values.GIB), "--memory-limit") == n_bytes


@pytest.mark.parametrize(("text", "share"), [("0.03", 0.03), ("3%", 0.03), ("0", 0.0)])
def test_shares(text, share):
    assert values.share(text, "--threshold") == pytest.approx(share)


@pytest.mark.parametrize("text", ["1", "100%", "-1%", "x", "%"])
def test_what_is_no_share(text):
    with pytest.raises(PeakwardError, match="share"):
        values.share(text, "--threshold")
