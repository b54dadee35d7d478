"""Products of operands that lie in several ways."""

import pytest
import torch

from peakward.lab.micro import matmul_operands
from peakward.lab.micro.matmul_operands import PIECES


@pytest.mark.parametrize("piece", PIECES)
def test_each_layout_is_near_fp64(piece, work, bound):
    found = work("matmul-operands", piece, 33)
    assert found.difference < bound
    assert found.flops == 2 * 33**3


@pytest.mark.parametrize(
    ("lay", "strides"),
    [
        ("as_stored", (5, 1)),
        ("transposed", (1, 5)),
        ("strided_rows", (10, 1)),
        ("strided_columns", (10, 2)),
        ("expanded", (0, 1)),
    ],
)
def test_operands_lie_as_their_names_say(lay, strides):
    laid = getattr(matmul_operands, lay)(torch.randn(5, 5))
    assert (tuple(laid.shape), laid.stride()) == ((5, 5), strides)


def test_a_copy_is_counted(work):
    matrix = 4 * 32 * 32
    assert work("matmul-operands", "strided columns", 32).moved_bytes == 3 * matrix
    assert work("matmul-operands", "strided columns (copied)", 32).moved_bytes == 5 * matrix
    assert work("matmul-operands", "expanded", 32).moved_bytes == 2 * matrix + 4 * 32
