"""The order in which Hopper's attention kernels take their work: plain arithmetic, which needs no GPU."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton")
from peakward.lab.ops.flash_attention.hopper import schedule

N_BLOCKS = st.integers(1, 40)
N_HEADS = st.integers(1, 150)


@given(N_BLOCKS, N_HEADS, st.data())
def test_every_tile_is_drawn_once(n_blocks, n_heads, data):
    width = data.draw(st.integers(1, n_heads))
    drawn = [schedule.place.fn(i, n_blocks, width, n_heads) for i in range(n_blocks * n_heads)]
    assert sorted(drawn) == [(b, h) for b in range(n_blocks) for h in range(n_heads)]


@given(st.integers(0, 50), N_HEADS, st.integers(1, 60))
def test_no_section_has_fewer_heads_than_are_asked_for(wanted, n_heads, least):
    width = schedule.heads_at_once(wanted, n_heads, least=least)
    assert width == n_heads or (width >= max(wanted, least) and not 0 < n_heads % width < least)
