import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.records.study import Column, Table
from peakward.report.document import (
    Command,
    Document,
    Fact,
    Facts,
    Figure,
    Figures,
    Items,
    Note,
    Section,
    TableBlock,
)
from peakward.report.markdown import escape, render


def rendered(*blocks, **section):
    return render(
        Document(title="t", headline="h", sections=(Section(title="s", blocks=blocks, **section),))
    )


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("train_step", "train_step"),
        ("_it_", r"\_it\_"),
        ("a|b", r"a\|b"),
        ("<script>", r"\<script\>"),
        ("**x** [y](z) `q`", r"\*\*x\*\* \[y\](z) \`q\`"),
        ("2.7B", "2.7B"),
        ("1. first", r"1\. first"),
        ("# not a heading", r"\# not a heading"),
        ("- not a bullet", r"\- not a bullet"),
        ("--full runs them", "--full runs them"),
        ("two\nlines", "two lines"),
    ],
)
def test_text_cannot_become_markup(text, escaped):
    assert escape(text) == escaped


@given(st.text())
def test_no_name_breaks_its_row(name):
    table = Table(title="", columns=(Column(name="a"), Column(name="b")), rows=((name, "end"),))
    row = rendered(TableBlock(table=table)).splitlines()[-1]
    assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) == 3


def test_figures_have_a_row_of_details_only_where_one_has_any():
    step = Figure(name="step", value="179 ms")
    beside = Figure(name="peak", value="1 GiB", detail="baseline 2 GiB")
    head = "| step | peak |\n| --- | --- |\n| **179 ms** | **1 GiB** |"
    bare = msgspec.structs.replace(beside, detail=None)
    assert rendered(Figures(figures=(step, bare))).rstrip().endswith(head)
    assert f"{head}\n|  | baseline 2 GiB |" in rendered(Figures(figures=(step, beside)))


def test_numbers_are_set_to_the_right():
    table = Table(
        title="x", columns=(Column(name="a"), Column(name="b", unit="s")), rows=(("n", 0.5),)
    )
    assert "| --- | ---: |\n| n | 500 ms |" in rendered(TableBlock(table=table))


def test_a_folded_section_is_closed():
    text = rendered(Items(texts=("one",)), folded=True)
    assert "<details>\n<summary>s</summary>\n\n- one\n\n</details>" in text


def test_a_command_is_verbatim_in_a_fence_that_holds_it():
    assert "````sh\necho ``` | <x>\n````" in rendered(Command(text="echo ``` | <x>"))


def test_facts_keep_their_lines_and_notes_stand_out():
    facts = Facts(facts=(Fact(name="a", value="1"), Fact(name="b", value="2")))
    text = rendered(facts, Note(text="beware"))
    assert "a: 1\\\nb: 2" in text
    assert "> beware" in text
