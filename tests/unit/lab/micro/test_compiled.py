"""What the compiler says that its kernels move."""

import logging

import pytest
import torch

from peakward.lab.micro.compiled import Compiled
from peakward.lab.micro.softmax import formula


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
