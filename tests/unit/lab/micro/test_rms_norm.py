"""RMSNorm by several ways."""

import pytest


@pytest.mark.parametrize("piece", ["call by call", "torch", "peakward"])
def test_each_way_is_near_fp64(piece, work, bound):
    assert work("rms-norm", piece, 7, 64).difference < bound


def test_separate_calls_make_seven_passes(work):
    rows, columns = 32, 64
    x, one_a_row, weight = 4 * rows * columns, 4 * rows, 4 * columns
    # square 2, mean 1, then ε and the root, then two products of 2 each.
    moved = 7 * x + one_a_row + 4 * one_a_row + one_a_row + weight
    assert work("rms-norm", "call by call", rows, columns).moved_bytes == moved


def test_bf16_is_computed_in_fp32_and_rounded_at_the_end(work):
    assert work("rms-norm", "call by call", 7, 64, precision="bf16").difference < 2.0**-7
