"""Three projections against one."""

import pytest

from peakward.lab.micro.projection import PIECES


@pytest.mark.parametrize("piece", PIECES)
def test_each_way_is_near_fp64(piece, work, bound):
    found = work("projection", piece, 10, 24)
    assert 0 < found.difference < bound
    assert found.flops == 2 * 10 * 24 * 72


def test_packed_reads_the_tokens_once_and_its_three_results_are_one_memory(work):
    tokens, weights = 4 * 10 * 24, 4 * 3 * 24 * 24
    assert work("projection", "separate", 10, 24).moved_bytes == 6 * tokens + weights
    packed = work("projection", "packed", 10, 24)
    assert packed.moved_bytes == packed.least_bytes == 4 * tokens + weights
    assert packed.allocated_bytes == 3 * tokens
    assert work("projection", "packed (copied)", 10, 24).moved_bytes == 10 * tokens + weights
