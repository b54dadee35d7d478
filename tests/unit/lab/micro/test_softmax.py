"""Softmax by several ways: equal numbers, and as many passes as each makes."""

import pytest
import torch

from peakward.lab.micro import softmax


@pytest.mark.parametrize(
    "piece", ["three passes", "online", "online, one kernel", "torch", "peakward"]
)
@pytest.mark.parametrize("columns", [1, 17, 512, 513, 1200])
def test_each_way_is_near_fp64(piece, columns, work, bound):
    assert work("softmax", piece, 5, columns).difference < bound


def test_the_online_softmax_rescales_its_sum_where_the_maximum_grows():
    x = torch.linspace(-40, 40, 3 * softmax.BLOCK).repeat(2, 1)
    exact = softmax.formula(x.double())
    assert torch.allclose(softmax.online(x).double(), exact, rtol=1e-5, atol=0)


def test_separate_calls_make_eight_passes_and_the_fused_one_two(work):
    rows, columns = 32, 256
    x, one_a_row = 4 * rows * columns, 4 * rows
    assert work("softmax", "three passes", rows, columns).moved_bytes == 8 * x + 4 * one_a_row
    fused = work("softmax", "torch", rows, columns)
    assert (fused.moved_bytes, fused.least_bytes, fused.input_bytes) == (2 * x, 2 * x, x)
    assert fused.flops == 5 * rows * columns


def test_between_calls_the_online_one_moves_more_than_three_passes(work):
    x = 4 * 32 * 1024
    moved = work("softmax", "online", 32, 1024).moved_bytes
    assert 12 * x < moved < 12.5 * x


@pytest.mark.parametrize("columns", [512, 4096, 65_536])
def test_the_online_softmax_in_one_kernel_takes_rows_in_pieces(columns, monkeypatch):
    """Narrower than a row, so that the kernel that it starts is the online one; torch sees none of it."""
    from peakward.kernels.ops.softmax import triton

    given = []
    monkeypatch.setattr(triton, "softmax", lambda x, dtype, settings: given.append(settings))
    softmax.online_kernel(torch.empty(1, columns))
    (settings,) = given
    assert settings.rows == 1
    assert settings.held < columns


def test_what_torch_does_not_see_is_not_counted(work):
    found = work("softmax", "online, one kernel", 4, 1024)
    assert (found.moved_bytes, found.counted_by) == (None, None)
