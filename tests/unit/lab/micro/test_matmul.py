"""The product of two matrices by loops, NumPy and torch."""

import pytest

from peakward.lab.micro.matmul import loops
from peakward.records.errors import PeakwardError


def test_loops_multiply():
    assert loops([[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]) == [[19.0, 22.0], [43.0, 50.0]]


@pytest.mark.parametrize("piece", ["numpy", "torch"])
def test_each_way_is_near_fp64(piece, work, bound):
    found = work("matmul", piece, 48)
    assert 0 < found.difference < bound
    assert found.flops == 2 * 48**3


def test_loops_are_fp64(work):
    assert work("matmul", "python loops", 16, precision="fp64").difference < 16 * 2.0**-53


def test_nothing_counts_what_is_not_torchs(work):
    for piece in ("python loops", "numpy"):
        found = work("matmul", piece, 8)
        assert (found.moved_bytes, found.counted_by) == (None, None)
    assert work("matmul", "torch", 8).moved_bytes == 3 * 4 * 8 * 8


def test_numpy_has_no_bf16(work):
    with pytest.raises(
        PeakwardError, match="expected numpy on cpu in fp64 or fp32, got cpu in bf16"
    ):
        work("matmul", "numpy", 8, precision="bf16")
