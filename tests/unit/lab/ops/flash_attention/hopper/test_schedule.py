"""How many heads a causal pass works on at once."""

import pytest

pytest.importorskip("triton")
from peakward.lab.ops.flash_attention.hopper.schedule import (
    L2_BYTES,
    TILES_A_PROGRAM,
    heads_at_once,
)

PROGRAMS = 132
SMALL, LARGE = 1 << 10, L2_BYTES


@pytest.mark.parametrize("n_heads", [1, 7, 32, 61, 64, 1000])
@pytest.mark.parametrize("n_blocks", [1, 4, 32, 128, 300])
@pytest.mark.parametrize("bytes_per_head", [SMALL, 3 << 20, LARGE])
def test_every_section_has_tiles_for_all_programs(n_heads, n_blocks, bytes_per_head):
    width = heads_at_once(bytes_per_head, n_heads, n_blocks, PROGRAMS, causal=True)
    last = n_heads % width or width
    assert last == n_heads or last * n_blocks >= TILES_A_PROGRAM * PROGRAMS


def test_no_more_than_that_where_the_cache_holds_one():
    assert heads_at_once(LARGE, 32, 128, PROGRAMS, causal=True) == 4, "3 would leave 2"
    assert heads_at_once(LARGE, 32, 32, PROGRAMS, causal=True) == 11, "9 and 10 would leave few"
    assert heads_at_once(LARGE, 33, 128, PROGRAMS, causal=True) == 3


def test_what_the_cache_holds_where_that_is_more():
    assert heads_at_once(L2_BYTES // 16, 64, 32, PROGRAMS, causal=True) == 16


def test_equal_tiles_need_no_others_beside_them():
    assert heads_at_once(LARGE, 32, 128, PROGRAMS, causal=False) == 1
    assert heads_at_once(0, 32, 128, PROGRAMS, causal=False) == 32
