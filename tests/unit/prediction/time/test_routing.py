"""Dealing tokens to experts on a device of round figures, by hand."""

import pytest

from peakward.prediction.time.routing import BY_ROWS, routing

from .round_device import US, device, operator, tensor

LAUNCH_S = 2 * US


def seconds(name, inputs, outputs):
    return routing(name, operator(name, inputs, outputs), device())


def visits(n):
    return tensor(n, dtype="int64")


def test_a_short_sort_is_a_block_and_a_long_one_passes_over_digits():
    """Keys and indices, 16 bytes of each visit, read and written in every launch."""
    for n, n_launches in ((4096, 3), (4097, 12), (1_000_000, 12)):
        found = seconds("sort", [visits(n)], [visits(n)] * 2)
        assert found == (pytest.approx(n_launches * (LAUNCH_S + 32 * n / 1e12)), n_launches)


def test_topk_is_a_choice_and_an_order():
    given, share, chosen = tensor(1000, 8), tensor(1000, 2), tensor(1000, 2, dtype="int64")
    moved = 1000 * (8 * 4 + 2 * 4 + 2 * 8)
    assert seconds("topk", [given], [share, chosen]) == (
        pytest.approx(2 * LAUNCH_S + moved / 1e12),
        2.0,
    )


@pytest.mark.parametrize("name", BY_ROWS)
def test_rows_are_moved_element_by_element(name):
    rows = tensor(10_000, 4096, dtype="bfloat16")
    found, n_launches = seconds(name, [rows, visits(10_000)], [rows])
    assert n_launches == 1.0
    assert found == pytest.approx(1.65 * (LAUNCH_S + (4 * 10_000 * 4096 + 80_000) / 1e12))
    few = tensor(4, 8, dtype="bfloat16")
    assert seconds(name, [few, visits(4)], [few])[0] == pytest.approx(1.65 * LAUNCH_S, rel=1e-3)


def test_all_else_is_no_routing():
    assert seconds("mul", [tensor(4)], [tensor(4)]) is None
