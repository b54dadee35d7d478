"""Rounding as torch's `round_size` does it; what is cut is tested in `test_device_memory`."""

import numpy as np
import pytest

from peakward.traces.memory.block_sizes import rounded

MIB = 1 << 20


@pytest.mark.parametrize(
    ("asked", "size"), [(1, 512), (512, 512), (513, 1024), (MIB, MIB), (MIB + 1, MIB + 512)]
)
def test_to_512_bytes(asked, size):
    assert rounded(np.array([asked])).tolist() == [size]


@pytest.mark.parametrize(
    ("asked", "size"),
    [
        # torch's own example: 1200 with 4 divisions between 1024 and 2048 is 1280, were it larger
        # than 512 * 4; from there on it is.
        (1200, 1536),
        (3 * MIB, 3 * MIB),
        (2 * MIB + 1, 2 * MIB + MIB // 2),
        (4 * MIB, 4 * MIB),
        (5 * MIB + 7, 6 * MIB),
        (2049, 2560),
    ],
)
def test_to_divisions_of_powers_of_two(asked, size):
    divisions = {str(1 << power): 4 for power in range(16)}
    assert rounded(np.array([asked]), divisions).tolist() == [size]


def test_divisions_hold_where_they_begin_until_the_next():
    divisions = {"1": 0, "2": 2, "4": 0, "x": 3, "8": "a", "²": 2, "9" * 5000: 2, "3": 2, "02": 4}
    asked = np.array([MIB + 1, 2 * MIB + 1, 4 * MIB + 1])
    assert rounded(asked, divisions).tolist() == [MIB + 512, 3 * MIB, 4 * MIB + 512]
