"""A table's columns: their roles (row names, sentences, figures), and their text wrapped between words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.records.study import Column, Table
from peakward.report.columns import (
    LONGEST_NAME,
    cut,
    in_one_unit,
    longest_part,
    name_columns,
    parts,
    prose_columns,
    shown,
    spread_column,
    without_empty,
    wrap,
)

TABLE = Table(
    title="t",
    columns=(
        Column(name="lever"),
        Column(name="seq", unit="count"),
        Column(name="step", unit="s"),
        Column(name="empty"),
        Column(name="reason"),
    ),
    rows=(("sdpa", 128, 0.1, None, "short"), ("compile", 256, None, None, "a" * 33)),
)


def test_prose_is_a_text_column_with_a_long_cell():
    assert prose_columns(TABLE) == (4,)


def test_names_lead_up_to_the_first_measured_column():
    assert name_columns(TABLE) == (0, 1)


def test_a_column_without_any_cell_is_dropped():
    kept = without_empty(TABLE)
    assert [column.name for column in kept.columns] == ["lever", "seq", "step", "reason"]
    assert kept.rows[1] == ("compile", 256, None, "a" * 33)


def test_a_column_of_estimates_names_no_row():
    columns = (Column(name="case"), spread_column("median"), Column(name="verdict"))
    table = Table(title="", columns=columns, rows=(("a", "1.00 s (0.99–1.01 s)", "stable"),))
    assert name_columns(table) == (0,)


ADD = "vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"


def test_a_name_breaks_behind_its_separators():
    assert wrap(ADD, 28).split("\n") == [
        "vectorized_elementwise_",
        "kernel<4, at::native::",
        "CUDAFunctor_add<float>>",
    ]
    assert longest_part(ADD) == len("elementwise_")


def test_a_number_is_a_word():
    assert parts("a=0.25,b") == ["a=", "0.25,", "b"]


def test_a_word_wider_than_the_line_breaks_at_its_end():
    assert wrap("abcdef gh", 4).split("\n") == ["abcd", "ef", "gh"]


def test_a_name_of_hundreds_of_characters_keeps_its_ends_whole():
    name = "Cijk_Alik_Bljk_" + "_".join(f"AB{n}x{n}" for n in range(60)) + "_WG16_4_1"
    shown = cut(name)
    head, tail = shown.split("…")
    assert len(shown) <= LONGEST_NAME + 1
    assert name.startswith(head) and head.endswith("_")
    assert name.endswith("_WG16_4_1") and name.endswith(tail)
    assert set(parts(head)) | set(parts(tail)) <= set(parts(name))


def test_one_word_of_hundreds_of_characters_is_cut_too():
    assert cut("a" * 500) == "a" * LONGEST_NAME + "…"


@pytest.mark.parametrize("text", ["", " ", "a\n\nb", "x" * 300])
def test_what_is_hardly_a_text_is_laid_out_too(text):
    assert "".join(wrap(text, 10).split()) == "".join(text.split())


@given(st.text(max_size=200), st.integers(1, 40))
def test_nothing_is_lost_and_no_line_is_wider(text, width):
    shown = wrap(text, width)
    assert all(len(line) <= width for line in shown.split("\n"))
    assert "".join(shown.split()) == "".join(text.split())
    assert "".join(parts(text)) == text


def sized(*sizes):
    columns = (
        Column(name="what"),
        Column(name="predicted", unit="s"),
        Column(name="peak", unit="bytes"),
    )
    return Table(title="", columns=columns, rows=tuple(("a", None, size) for size in sizes))


def test_a_column_of_sizes_has_one_unit_that_of_its_largest():
    def told(*sizes):
        return [row[-1] for row in in_one_unit(sized(*sizes)).rows]

    assert told(0.515 * 2**30, 61.4 * 2**20) == ["527 MiB", "61.4 MiB"]
    assert told(14.2 * 2**30, 61.4 * 2**20, None, 0) == ["14.2 GiB", "0.0600 GiB", None, "0 GiB"]
    assert told(14.2 * 2**30, 2**12) == ["14.2 GiB", "4.00 KiB"], "0.00000381 GiB says less"
    assert told("oom", 2**20) == ["oom", "1.00 MiB"]


def test_a_column_without_a_value_is_not_shown_unless_no_row_is():
    assert [column.name for column in shown(sized(1, 2)).columns] == ["what", "peak"]
    assert len(shown(sized()).columns) == 3


def test_columns_of_sizes_that_are_not_far_apart_have_one_unit():
    columns = tuple(Column(name=name, unit="bytes") for name in ("parameters", "peak", "copied"))
    row = (0.788 * 2**30, 3.22 * 2**30, 46 * 2**20)
    table = in_one_unit(Table(title="", columns=columns, rows=(row,)))
    assert table.rows == (("0.788 GiB", "3.22 GiB", "46.0 MiB"),)
