import functools

import torch
from torch import nn

from peakward.lab.models.copies import copied


class Block(nn.Module):
    """As minGPT's: a function over its parts, read in the forward pass."""

    def __init__(self, make):
        super().__init__()
        self.parts = nn.ModuleDict({"up": nn.Linear(4, 8), "down": nn.Linear(8, 4)})
        self.scale = nn.Parameter(torch.ones(()))
        self.work = make(self)

    def forward(self, x):
        return self.work(x)


def by_closure(block):
    m = block.parts
    return lambda x: m.down(m.up(x).relu()) * block.scale


def by_a_function_in_a_closure(block):
    inner = by_closure(block)

    def twice(x):
        return inner(inner(x))

    return twice


def by_a_default(block):
    return lambda x, m=block.parts, *, scale=block.scale: m.down(m.up(x)) * scale


def by_a_partial(block):
    return functools.partial(lambda m, x: m.down(m.up(x)), block.parts)


def by_recursion(block):
    m = block.parts

    def work(x, n=2):
        return m.down(m.up(x)) if n == 0 else work(x, n - 1)

    return work


def expect_apart(make):
    torch.manual_seed(0)
    model = nn.Sequential(Block(make), Block(make))
    x = torch.randn(3, 4)
    before = model(x)
    other = copied(model)
    assert torch.equal(other(x), before)
    other(x).sum().backward()
    assert all(each.grad is None for each in model.parameters())
    assert all(each.grad is not None for each in other[0].parts.parameters())
    with torch.no_grad():
        for each in other.parameters():
            each.zero_()
    assert torch.equal(model(x), before)
    assert not torch.equal(other(x), before)


def test_a_closure_computes_with_the_copy():
    expect_apart(by_closure)


def test_so_does_a_function_that_it_calls():
    expect_apart(by_a_function_in_a_closure)


def test_so_do_defaults():
    expect_apart(by_a_default)


def test_so_does_a_partial():
    expect_apart(by_a_partial)


def test_so_does_a_function_that_calls_itself():
    expect_apart(by_recursion)


def test_a_function_that_reads_nothing_of_the_model_is_the_same_one():
    factor = torch.tensor(2.0)

    def double(x):
        return factor * x

    block = Block(lambda _block: double)
    assert copied(block).work is double
