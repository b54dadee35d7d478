import io
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from peakward.report.document import Command, Document, Note, Paragraph, Section
from peakward.report.documents import document
from peakward.report.terminal import render, shell_lines


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
