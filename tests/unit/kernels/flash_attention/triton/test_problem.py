"""How a head is cut into two parts, and which tensors descriptors can read."""

import pytest
import torch

pytest.importorskip("triton")
from peakward.kernels.ops.flash_attention.triton.problem import (
    describable,
    halves,
    parts,
    section,
)


@pytest.mark.parametrize(
    ("head_dim", "expected"),
    [
        (16, (16, 0)),
        (17, (16, 16)),
        (48, (32, 16)),
        (64, (64, 0)),
        (72, (64, 16)),
        (80, (64, 16)),
        (96, (64, 32)),
        (112, (64, 64)),
        (160, (128, 32)),
        (192, (128, 64)),
        (256, (256, 0)),
    ],
)
def test_parts_of_a_head(head_dim, expected):
    assert parts(head_dim) == expected


def test_every_head_fits_into_its_parts_without_a_whole_part_to_spare():
    for head_dim in range(16, 257):
        first, second = parts(head_dim)
        assert first <= head_dim <= first + second
        assert second == 0 or first + second - head_dim < max(16, second // 2)


def test_descriptors_want_multiples_of_16_bytes():
    rows = torch.zeros(2, 8, 3, 80, dtype=torch.bfloat16)
    assert describable(rows, rows.transpose(1, 2))
    assert not describable(rows[..., 1:65])
    assert not describable(torch.zeros(1, 1, 8, 20, dtype=torch.bfloat16))
    assert not describable(rows[:, :1].expand(2, 8, 3, 80))
    assert not describable(rows[:0])
    assert not describable(rows[0])


def test_strides_that_are_never_taken_do_not_hinder_descriptors():
    one = torch.zeros(64).as_strided((1, 1, 2, 32), (3, 5, 32, 1))
    assert describable(one)
    described, rest = halves(one, 16, described=True)
    assert described.strides == [16, 16, 32, 1]
    assert described.block_shape == rest.block_shape == [1, 1, 16, 32]


def test_a_section_is_what_fits_into_half_of_l2_and_never_empty():
    assert section(4096, 64, 2, n_heads=100) == 24
    assert section(4096, 64, 2, n_heads=3) == 3
    assert section(1 << 20, 128, 2, n_heads=100) == 1
    assert section(0, 64, 2, n_heads=0) == 1
