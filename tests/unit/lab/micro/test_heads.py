"""Attention on heads that lie in several ways."""

import pytest

from peakward.lab.micro.heads import PIECES

SHAPE = (2, 3, 16, 8)


@pytest.mark.parametrize("piece", PIECES)
def test_each_layout_is_near_fp64(piece, work, bound):
    found = work("heads", piece, *SHAPE)
    assert 0 < found.difference < bound
    n_products = 1 if piece.startswith("scores") else 2
    assert found.flops == n_products * 2 * 2 * 3 * 16 * 16 * 8


def test_torch_copies_permuted_heads_before_it_multiplies_them(work):
    heads, made = 4 * 2 * 3 * 16 * 8, 4 * 2 * 3 * 16 * 16
    assert work("heads", "scores of heads first", *SHAPE).moved_bytes == 2 * heads + made
    permuted = work("heads", "scores of permuted heads", *SHAPE)
    assert permuted.moved_bytes == 6 * heads + made
    copied = work("heads", "scores of permuted heads (copied)", *SHAPE)
    assert copied.moved_bytes == permuted.moved_bytes


def test_fused_attention_takes_them_as_they_are(work):
    first = work("heads", "attention of heads first", *SHAPE)
    assert work("heads", "attention of permuted heads", *SHAPE).moved_bytes == first.moved_bytes
