"""Lines that break between words and inside none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peakward.report.wrapping import LONGEST_NAME, cut, longest_part, parts, wrap

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
