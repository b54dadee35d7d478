"""Sums of matrices that lie in several ways."""

import pytest

from peakward.lab.micro.addition import PIECES


@pytest.mark.parametrize("piece", PIECES)
def test_each_layout_is_near_fp64(piece, work, bound):
    found = work("addition", piece, 33)
    assert 0 < found.difference < bound
    assert found.flops == 33 * 33


def test_what_is_expanded_is_read_once_and_what_is_copied_three_times(work):
    matrix = 4 * 32 * 32
    assert work("addition", "contiguous", 32).moved_bytes == 3 * matrix
    assert work("addition", "an expanded column", 32).moved_bytes == 2 * matrix + 4 * 32
    assert work("addition", "one transposed (copied)", 32).moved_bytes == 5 * matrix
