"""Cross-entropy by several ways."""

import pytest


@pytest.mark.parametrize("piece", ["call by call", "torch", "peakward"])
def test_each_way_is_near_fp64(piece, work, bound):
    assert work("cross-entropy", piece, 9, 50).difference < bound


def test_torchs_own_writes_all_probabilities_and_separate_calls_move_more(work):
    logits = 4 * 64 * 1000
    fused = work("cross-entropy", "torch", 64, 1000)
    assert 2 * logits < fused.moved_bytes < 2.02 * logits
    assert 7 * logits < work("cross-entropy", "call by call", 64, 1000).moved_bytes < 7.1 * logits
    assert fused.least_bytes == logits + 64 * 8 + 4, "logits, targets and the loss"
