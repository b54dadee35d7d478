"""What every piece is drawn and checked by."""

import logging

import pytest
import torch

from peakward.lab.micro.piece import Compiled, chosen, drawn, sizes
from peakward.lab.micro.softmax import formula
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


@pytest.fixture(autouse=True)
def fresh():
    yield
    torch._dynamo.reset()


def test_a_fused_softmax_moves_its_input_and_its_result_alone(caplog):
    caplog.set_level(logging.INFO)
    x = torch.randn(16, 200)
    compiled = Compiled(formula)
    assert compiled.moved_bytes is None
    first, again = compiled(x), compiled(x)
    assert compiled.moved_bytes == 2 * 4 * x.numel()
    assert torch.equal(first, again)
    exact = formula(x.double())
    assert (first - exact).abs().max() < 64 * 2.0**-24
    assert not any("num_bytes_accessed" in each.message for each in caplog.records)


@pytest.mark.full
def test_another_compilation_counts_its_own():
    x = torch.randn(8, 100)
    first, second = Compiled(formula), Compiled(formula)
    first(x)
    second(x)
    assert first.moved_bytes == second.moved_bytes == 2 * 4 * x.numel()
