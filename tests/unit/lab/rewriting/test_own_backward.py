"""Functions with a backward pass of their own, in graphs that run as they stand."""

import gc

import pytest
import torch
from torch import nn

from peakward.lab.rewriting.backend import eager


class Scaled(torch.autograd.Function):
    """exp(x · scale), which is kept with x, a number, and a state that the backward pass changes."""

    @staticmethod
    def forward(ctx, x, state, scale):
        y = (x * scale).exp()
        largest = y.abs().amax()
        ctx.save_for_backward(x, y)
        ctx.scale, ctx.state = scale, state
        ctx.mark_non_differentiable(largest)
        return y, largest

    @staticmethod
    def backward(ctx, of_y, _of_largest):
        _, y = ctx.saved_tensors
        ctx.state.add_(1)
        return of_y * y * ctx.scale, None, None


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4) / 4)
        self.state = torch.zeros(())

    def forward(self, x):
        for _ in range(3):
            x, largest = Scaled.apply(x @ self.weight, self.state, 0.5)
        return x.sum() / largest


@pytest.fixture
def chain():
    torch.manual_seed(0)
    return Chain()


@pytest.fixture
def run(chain):
    yield torch.compile(chain.forward, backend=eager, fullgraph=True)
    torch._dynamo.reset()


X = torch.linspace(-1, 1, 8).view(2, 4)


def test_numbers_are_those_of_the_function(chain, run):
    expected = chain(X)
    (gradient,) = torch.autograd.grad(expected, chain.weight)
    found = run(X)
    (other,) = torch.autograd.grad(found, chain.weight)
    assert torch.equal(found, expected)
    assert torch.equal(other, gradient)
    assert chain.state == 6


def test_nothing_outlives_the_backward_pass(chain, run):
    run(X).backward()
    gc.collect()
    gc.disable()
    try:
        torch.autograd.graph.get_gradient_edge(chain.weight).node.metadata["first"] = True
        loss = run(X)
        torch.autograd.graph.get_gradient_edge(chain.weight).node.metadata["second"] = True
        loss.backward()
        del loss
        left = torch.autograd.graph.get_gradient_edge(chain.weight).node.metadata
    finally:
        gc.enable()
    assert "second" not in left


def test_a_second_backward_pass_says_what_is_missing(run):
    loss = run(X)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
