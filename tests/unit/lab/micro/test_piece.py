"""What every piece is drawn and checked by."""

import pytest
import torch

from peakward.lab.micro.piece import chosen, drawn, sizes
from peakward.records.case import MicroCase
from peakward.records.errors import PeakwardError

CASE = MicroCase(subject="softmax", piece="torch", sizes=(4, 8), device="cpu")


def test_inputs_are_those_of_the_seed_in_the_cases_type():
    assert torch.equal(drawn(CASE, 3), drawn(CASE, 3))
    other = MicroCase(subject="softmax", piece="torch", sizes=(4, 8), device="cpu", seed=1)
    assert not torch.equal(drawn(CASE, 3), drawn(other, 3))
    half = MicroCase(subject="softmax", piece="torch", sizes=(4, 8), device="cpu", precision="bf16")
    assert drawn(half, 3).dtype == torch.bfloat16


@pytest.mark.parametrize("names", [("n",), ("a", "b", "c")])
def test_another_number_of_sizes_is_refused(names):
    with pytest.raises(PeakwardError, match=f"expected {len(names)} positive sizes"):
        sizes(CASE, *names)


def test_a_size_of_zero_is_refused():
    empty = MicroCase(subject="softmax", piece="torch", sizes=(0, 8), device="cpu")
    with pytest.raises(PeakwardError, match="expected 2 positive sizes"):
        sizes(empty, "rows", "columns")


def test_an_unknown_piece_names_those_that_there_are():
    with pytest.raises(PeakwardError, match=r"expected a piece of softmax \(a, b\), got 'torch'"):
        chosen(CASE, {"a": 1, "b": 2})
