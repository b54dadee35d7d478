"""Which tiles are worked on at once, and in which order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton")
from peakward.kernels.ops.flash_attention.hopper.schedule import (
    TILES_A_PROGRAM,
    balanced,
    heads_at_once,
    place,
)

PROGRAMS = 132


@given(st.integers(1, 40), st.integers(1, 150), st.data())
def test_every_tile_is_drawn_once(n_blocks, n_heads, data):
    """What a kernel computes is plain arithmetic."""
    width = data.draw(st.integers(1, n_heads))
    drawn = [place.fn(i, n_blocks, width, n_heads) for i in range(n_blocks * n_heads)]
    assert sorted(drawn) == [(b, h) for b in range(n_blocks) for h in range(n_heads)]


@given(st.integers(0, 70), st.integers(1, 1000), st.integers(1, 300))
def test_every_section_has_tiles_for_all_programs(wanted, n_heads, n_blocks):
    least = balanced(n_blocks, PROGRAMS)
    width = heads_at_once(wanted, n_heads, least=least)
    last = n_heads % width or width
    assert width == n_heads or width >= max(wanted, least)
    assert last == n_heads or last * n_blocks >= TILES_A_PROGRAM * PROGRAMS


def test_no_more_than_that_where_no_more_are_wanted():
    assert heads_at_once(0, 32, least=3) == 4, "3 would leave 2"
    assert heads_at_once(1, 32, least=9) == 11, "9 and 10 would leave few"
    assert heads_at_once(1, 33, least=3) == 3


def test_as_many_as_are_wanted():
    assert heads_at_once(16, 64, least=9) == 16
    assert heads_at_once(100, 32, least=1) == 32


@pytest.mark.parametrize(("n_blocks", "n_heads"), [(128, 3), (4, 66), (33, 8), (300, 1)])
def test_unequal_tiles_are_two_a_program(n_blocks, n_heads):
    assert balanced(n_blocks, PROGRAMS) == n_heads
