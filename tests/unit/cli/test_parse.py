"""Words to options, complaints to one line."""

import sys

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from peakward.cli import parse as cli_parse
from peakward.cli.parse import option_names, parse
from peakward.cli.vocabulary import CaseOptions, Cases, ResultOptions, Results
from peakward.records import check
from peakward.records.errors import PeakwardError


class Words(msgspec.Struct, frozen=True, kw_only=True):
    """Some options."""

    case: Cases = CaseOptions()
    results: Results = ResultOptions()


def read(*words: str) -> Words:
    options = parse(Words, words, prog="peakward bench")
    assert options is not None
    return options


def test_options_are_read():
    options = read("--batch-size", "1,2", "--pass=forward", "--json")
    assert (options.case.batch_size, options.case.pass_, options.results.json) == (
        "1,2",
        "forward",
        True,
    )
    assert read().case.model is None


def test_no_command_waits_for_the_check_of_its_own_defaults(monkeypatch):
    monkeypatch.delitem(sys.modules, "typeguard", raising=False)
    read("--batch-size", "1")
    assert "typeguard" not in sys.modules


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--modle", "tiny"), "got --modle: perhaps --model"),
        (("--sequence-len=4",), "got --sequence-len: perhaps --seq-len"),
        (("--zzz",), "got --zzz: see `peakward bench --help`"),
        (("tiny",), "got tiny: "),
        (("--model",), "Missing value for argument '--model'. Expected 1 values: see"),
        (("--no-json",), "got --no-json: perhaps --json"),
    ],
)
def test_a_complaint_is_one_line_with_what_to_do(words, line, capsys):
    with pytest.raises(PeakwardError) as caught:
        read(*words)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capsys.readouterr() == ("", "")


def test_help_shows_the_docstrings_and_what_the_defaults_are(capsys):
    assert parse(Words, ("--help",), prog="peakward bench") is None
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "Some options." in said
    assert "--batch-size N,… Sequences in one micro-batch. (default: 4; on a CPU 2)" in said


class Long(msgspec.Struct, frozen=True, kw_only=True):
    """Some options.

    The lines of this paragraph end where those of the source do, and on a terminal of eighty
    columns where these do.
    """

    rows: str = "8"
    """The first line of the source ends behind a
    few words, and the terminal has room for more."""


def test_help_breaks_lines_where_the_terminal_ends(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    parse(Long, ("--help",), prog="peakward bench")
    said = capsys.readouterr().out
    assert "behind a few words" in said
    assert (
        "\n\nThe lines of this paragraph end where those of the source do, and on a terminal\n"
        "of eighty columns where these do.\n\n"
    ) in said


def test_option_names_are_those_of_the_help(capsys):
    parse(Words, ("--help",), prog="peakward bench")
    said = capsys.readouterr().out
    for name in option_names(Words):
        assert f"{name} " in said


words = st.one_of(
    st.sampled_from([*option_names(Words), "--", "-x", "=", "--json=1", "--model=a", "@file"]),
    st.text(max_size=8),
)


@example(["\n"])
@given(st.lists(words, max_size=6))
def test_any_words_are_read_or_refused_on_one_line(line):
    try:
        parse(Words, line, prog="peakward bench")
    except PeakwardError as error:
        assert "\n" not in str(error)


READERS = (
    lambda text: cli_parse.split(text, "--x"),
    lambda text: cli_parse.whole(text, "--x", low=1, high=100),
    lambda text: cli_parse.memory_bytes(text, "--x"),
    lambda text: check.duration_s(text, "--x"),
    lambda text: cli_parse.share(text, "--x"),
    lambda text: cli_parse.amount(text, "--x", high=1e6),
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
    assert cli_parse.split("b, a,b", "--x") == ("b", "a")
    with pytest.raises(PeakwardError, match="for --x, got 'a,,b'"):
        cli_parse.split("a,,b", "--x")


@pytest.mark.parametrize(("text", "number"), [("1", 1), ("100", 100), ("1_0", 10), ("+7", 7)])
def test_whole_numbers(text, number):
    assert cli_parse.whole(text, "--x", low=1, high=100) == number


@pytest.mark.parametrize("text", ["0", "101", "-1", "1.0", "", "1e2", "9" * 5000, "١", "_1"])
def test_what_is_no_whole_number_within_its_bounds(text):
    with pytest.raises(PeakwardError, match="from 1 to 100 for --x"):
        cli_parse.whole(text, "--x", low=1, high=100)


def test_both_bounds_are_written_alike():
    with pytest.raises(PeakwardError, match="from 1,048,576 to 1,073,741,824 for --x"):
        cli_parse.whole("0", "--x", low=2**20, high=2**30)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("5m", 300), ("1.5h", 5400), (" 2 m ", 120)]
)
def test_durations(text, seconds):
    assert check.duration_s(text, "--budget") == seconds


@pytest.mark.parametrize(
    "text", ["0", "0.5s", "8d", "-5m", "169h", "..", "nan", "inf", "5 minutes"]
)
def test_what_is_no_duration(text):
    with pytest.raises(PeakwardError, match="for --budget, got"):
        check.duration_s(text, "--budget")


def test_memory_is_in_gib():
    assert cli_parse.memory_bytes("24", "--memory-limit") == 24 * 2**30
    assert cli_parse.memory_bytes("0.5", "--memory-limit") == 2**29


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "24GiB", "1e300"])
def test_what_is_no_size(text):
    with pytest.raises(PeakwardError, match="GiB"):
        cli_parse.memory_bytes(text, "--memory-limit")


@given(st.integers(2**20, 2**50))
def test_bytes_survive_being_written_in_gib(n_bytes):
    assert cli_parse.memory_bytes(repr(n_bytes / cli_parse.GIB), "--memory-limit") == n_bytes


@pytest.mark.parametrize(("text", "share"), [("0.03", 0.03), ("3%", 0.03), ("0", 0.0)])
def test_shares(text, share):
    assert cli_parse.share(text, "--threshold") == pytest.approx(share)


@pytest.mark.parametrize("text", ["1", "100%", "-1%", "x", "%"])
def test_what_is_no_share(text):
    with pytest.raises(PeakwardError, match="share"):
        cli_parse.share(text, "--threshold")
