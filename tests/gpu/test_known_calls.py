"""Replayed calls of kernels within a CUDA graph and on another stream: results as everywhere else."""

import pytest
import torch

pytest.importorskip("triton")
from peakward.kernels import flash_attention, linear_cross_entropy, rms_norm, rope_
from peakward.kernels.ops import calling
from peakward.kernels.ops.calling import forget_calls

pytestmark = pytest.mark.gpu

N_CALLS = 3
"""One by the registered operator, one recorded, one replayed."""


def draw(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def loss(hidden, weight, targets):
    return linear_cross_entropy(hidden, weight, targets, implementation="chunked")


CASES = {
    "rms_norm": (lambda x, w: rms_norm(x, (256,), w), lambda: (draw(8, 256), draw(256))),
    "rope_": (
        lambda x, cos, sin: rope_(x.clone(), cos, sin),
        lambda: (draw(1, 2, 16, 64), draw(16, 32), draw(16, 32)),
    ),
    "flash_attention": (
        lambda q, k, v: flash_attention(q, k, v, causal=True),
        lambda: tuple(draw(1, 2, 128, 64) for _ in range(3)),
    ),
    "linear_cross_entropy": (
        loss,
        lambda: (draw(8, 256), draw(1000, 256), torch.arange(8, device="cuda")),
    ),
}
EACH = pytest.mark.parametrize("name", CASES)


@pytest.fixture
def settled(name, monkeypatch):
    """An operator whose calls are all replayed from here on, and what makes its inputs."""
    forget_calls()
    call, make = CASES[name]
    for _ in range(N_CALLS):
        call(*make())
    torch.cuda.synchronize()

    def refuse(*_):
        raise AssertionError("expected a replay")

    monkeypatch.setattr(calling.Operator, "_registered", refuse)
    yield call, make
    forget_calls()


def registered(call, inputs):
    """The result of a call that is not replayed."""
    forget_calls()
    return call(*inputs).clone()


@EACH
def test_a_captured_call_reads_what_its_inputs_hold_at_each_replay(name, settled, monkeypatch):
    call, make = settled
    held = make()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call(*held)
    monkeypatch.undo()
    for _ in range(2):
        for place, value in zip(held, make(), strict=True):
            place.copy_(value)
        graph.replay()
        assert torch.equal(result, registered(call, held))


@EACH
def test_a_call_on_another_stream_is_ordered_with_that_stream(name, settled, monkeypatch):
    """The inputs are only written behind a wait of some milliseconds, on that stream alone."""
    call, make = settled
    held, value = make(), make()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        for place, each in zip(held, value, strict=True):
            place.copy_(each)
        result = call(*held)
    torch.cuda.current_stream().wait_stream(stream)
    monkeypatch.undo()
    assert torch.equal(result, registered(call, value))
