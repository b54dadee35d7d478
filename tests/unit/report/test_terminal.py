"""The document in a terminal: lines of the console's width, coloured where possible."""

import io
import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from peakward.records.study import Column, Table
from peakward.report.columns import LONGEST_NAME, in_one_unit, shown
from peakward.report.document import Command, Document, Note, Paragraph, Section
from peakward.report.format import format_cell
from peakward.report.study import document
from peakward.report.terminal import lay_out, render, shell_lines


def printed(shown, width=100, *, terminal=False):
    file = io.StringIO()
    system = "standard" if terminal else "auto"
    render(shown, Console(file=file, width=width, force_terminal=terminal, color_system=system))
    return file.getvalue()


@pytest.mark.parametrize("width", [100, 80, 60])
@pytest.mark.parametrize("name", ["run_study", "bench_study"])
def test_no_line_is_wider_than_the_console(name, width, request):
    text = printed(document(request.getfixturevalue(name)), width)
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("width", [100, 80])
def test_no_number_is_lost_or_broken(run_study, width):
    text = printed(document(run_study), width)
    for figure in ("21.0k tok/s", "428 TFLOP/s", "1.002–1.006 s", "10.27–10.33×", "−55.2%"):
        assert figure in text
    assert "…" not in text


def test_colour_only_on_a_terminal(run_study):
    shown = document(run_study)
    assert "\x1b" not in printed(shown)
    coloured = printed(shown, terminal=True)
    assert "\x1b[32mgain confirmed" in coloured
    assert Text.from_ansi(coloured).plain.split() == printed(shown).split()


def test_markup_in_a_name_stays_text():
    shown = Document(title="[red]x[/red]", headline=":boom:", blocks=(Paragraph(text="[link=y]"),))
    assert printed(shown) == "[red]x[/red]\n:boom:\n\n[link=y]\n"


def test_commands_and_notes():
    blocks = (Note(text="beware"), Command(text="peakward run"))
    shown = Document(title="t", headline="h", sections=(Section(title="s", blocks=blocks),))
    lines = [line.rstrip() for line in printed(shown).splitlines()]
    assert lines[3:] == ["S", "", "! beware", "", "  peakward run"]


WORD = st.text("abc0,._/", min_size=1, max_size=12)


def test_a_short_command_is_left_alone():
    assert shell_lines("peakward run", 80) == ("peakward run",)


def test_a_command_with_quotes_is_left_alone():
    command = "peakward run --model 'a --b' " + "--lever x " * 20
    assert shell_lines(command, 40) == (command,)


@given(st.lists(st.tuples(WORD, WORD), max_size=12), st.integers(40, 100))
def test_the_lines_are_the_same_command(options, width):
    command = "peakward run" + "".join(f" --{name} {value}" for name, value in options)
    lines = shell_lines(command, width)
    assert shlex.split("\n".join(lines).replace("\\\n", "")) == shlex.split(command)
    assert all(len(line) <= width for line in lines)


REASON = "the interval holds both a gain of 1% and less"
TABLE = Table(
    title="Levers",
    columns=(
        Column(name="lever"),
        Column(name="speed-up", unit="ratio"),
        Column(name="tokens a second", unit="tokens_per_s"),
        Column(name="reason"),
    ),
    rows=(("sdpa", 1.06, 20_987, REASON), ("a" * 12, None, None, None)),
    note="A note.",
)


def lines(width, table=TABLE):
    console = Console(file=io.StringIO(), width=width)
    for part in lay_out(table, width):
        console.print(part)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_wide_console_shows_every_column_in_one_grid():
    shown = lines(100)
    assert shown[3].split("  ")[0] == "sdpa"
    assert shown[3].endswith(REASON)


def test_prose_moves_below_a_table_that_does_not_fit():
    shown = lines(52)
    assert shown[3].split() == ["sdpa", "1.06×", "21.0k", "tok/s"]
    assert shown[5:] == [
        "A note.",
        "",
        "reason",
        "- sdpa: the interval holds both a gain of 1% and",
        "  less",
    ]


def test_rows_that_share_their_prose_share_its_line():
    rows = tuple((lever, on, REASON) for lever, on in (("a", "x"), ("b", "x"), ("c", "y")))
    columns = (Column(name="lever"), Column(name="on"), Column(name="reason"))
    table = Table(title="", columns=columns, rows=rows)
    assert lines(34, table)[-3:] == [
        "- a (x), b (x), c (y): the",
        "  interval holds both a gain of 1%",
        "  and less",
    ]


def test_prose_of_rows_without_a_name_stands_alone():
    columns = (Column(name="reason"), Column(name="n", unit="count"))
    table = Table(title="", columns=columns, rows=((REASON, 1_000_000),))
    assert lines(30, table)[-2].startswith("- the interval")


def test_columns_are_split_over_grids_that_repeat_the_names():
    shown = lines(26)
    assert sum("sdpa" in line for line in shown) == 3
    assert "reason" in shown
    assert max(map(len, shown)) <= 26


def test_the_last_resort_is_row_by_row():
    shown = lines(18)
    assert shown[1] == "lever sdpa"
    assert "speed-up 1.06×," in shown[2]
    assert max(map(len, shown)) <= 18


def test_numbers_end_in_one_column():
    rows = tuple((name, value) for name, value in (("a", 1.0), ("b", 123.0)))
    table = Table(title="", columns=(Column(name=""), Column(name="x", unit="ratio")), rows=rows)
    assert [line[-5:] for line in lines(40, table)[-2:]] == ["1.00×", " 123×"]


def test_a_table_without_rows_still_shows_its_heads():
    empty = Table(title="Cases", columns=(Column(name="case"), Column(name="status")), rows=())
    assert lines(40, empty)[:2] == ["Cases", "case  status"]


NAMES = st.lists(
    st.tuples(
        st.text("abcXYZ0189", min_size=1, max_size=20),
        st.sampled_from(["::", "_", "<", ", ", ">", "/", "-", " ", "(", "=", "[", "__"]),
    ),
    min_size=1,
    max_size=12,
).map(lambda pairs: "".join(word + separator for word, separator in pairs).strip())
HEADINGS = st.lists(st.text("abcdefghij", min_size=1, max_size=12), min_size=1, max_size=3).map(
    " ".join
)
CELLS = {
    "name": NAMES,
    "text": st.lists(st.text("klmn", min_size=1, max_size=9), min_size=1, max_size=12).map(
        " ".join
    ),
    "s": st.none() | st.floats(1e-6, 1e3),
    "count": st.none() | st.integers(0, 10**9),
}


@st.composite
def tables(draw):
    units = draw(st.lists(st.sampled_from(sorted(CELLS)), min_size=1, max_size=9))
    columns = tuple(Column(name=draw(HEADINGS), unit=unit) for unit in units)
    n_rows = draw(st.integers(1, 4))
    rows = tuple(tuple(draw(CELLS[unit]) for unit in units) for _ in range(n_rows))
    return Table(title=draw(HEADINGS), columns=columns, rows=rows)


def words(text: str) -> set[str]:
    return set(re.findall(r"[^\W_]+", text))


@given(tables(), st.sampled_from([60, 80, 120]))
def test_no_word_breaks_and_no_column_vanishes(table, width):
    """Whatever the names, the texts, the number of columns and the width. An empty column is not shown."""
    printed = "\n".join(lines(width, table))
    assert max(map(len, printed.splitlines())) <= width
    table = in_one_unit(shown(table))
    headings = [words(column.name) for column in table.columns]
    cells = [
        words(format_cell(cell, column.unit))
        for row in table.rows
        for cell, column in zip(row, table.columns, strict=True)
    ]
    given_words = set().union(words(table.title), *headings, *cells)
    assert words(printed) <= given_words
    assert set().union(*headings) <= words(printed)
    for row in table.rows:
        for cell, column in zip(row, table.columns, strict=True):
            text = format_cell(cell, column.unit)
            if len(text) <= LONGEST_NAME:
                assert words(text) <= words(printed)
