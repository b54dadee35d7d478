"""The largest difference over the largest value."""

from types import SimpleNamespace

import pytest
import torch

from peakward.lab.micro.piece import Piece
from peakward.lab.micro.work import difference, piece_work


def test_the_difference_is_of_the_largest():
    exact = torch.tensor([2.0, -4.0, 0.0], dtype=torch.float64)
    assert difference(torch.tensor([2.0, -4.0, 0.0]), exact) == 0
    assert difference(torch.tensor([2.0, -4.0, 0.5]), exact) == pytest.approx(0.125)
    assert difference(torch.zeros(3), torch.zeros(3, dtype=torch.float64)) == 0


def test_several_results_are_held_to_the_oracle_one_after_another():
    x = torch.tensor([[1.0, 2.0]])
    piece = Piece(
        run=lambda: (x * 2, x + 1),
        inputs=(x,),
        flops=4,
        oracle=lambda: torch.tensor([[2.0, 4.0, 2.0, 3.0]], dtype=torch.float64),
    )
    found = piece_work(piece)
    assert (found.difference, found.result, found.counted_by) == (0, "new", "operators")
    assert (found.input_bytes, found.least_bytes) == (8, 24)
    assert (found.moved_bytes, found.allocated_bytes) == (32, 16)


def test_of_compiled_code_the_compiler_says_what_it_moves():
    x = torch.ones(4)
    compiled = SimpleNamespace(moved_bytes=7)
    piece = Piece(lambda: x * 2, (x,), flops=4, oracle=lambda: x.double() * 2, compiled=compiled)
    found = piece_work(piece)
    assert (found.moved_bytes, found.counted_by, found.difference) == (7, "compiler", 0)
