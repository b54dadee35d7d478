"""Words to options, complaints to one line."""

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from peakward.cli.parse import option_names, parse
from peakward.cli.vocabulary import CaseOptions, Cases, ResultOptions, Results
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
