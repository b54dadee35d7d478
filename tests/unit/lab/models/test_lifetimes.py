"""When tensors' memory comes and goes."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from peakward.lab.models.lifetimes import LifetimeRecorder

KIB = 1024


def recorded(run):
    with FakeTensorMode(), LifetimeRecorder() as line:
        run(line)
    return line


def test_a_temporary_is_there_from_its_operator_to_its_last_use():
    """Operators: empty, add, mul, neg. What add made is let go after mul."""

    def run(line):
        x = torch.empty(256)
        y = x + 1
        z = y * 2
        del y
        return (x, z.neg())

    found = recorded(run).lifetimes()
    assert [each.n_bytes for each in found] == [KIB] * 4
    assert [(each.made, each.last) for each in found] == [(0, 3), (1, 2), (2, 3), (3, 3)]


def test_a_view_makes_no_memory_and_keeps_it():
    def run(line):
        kept = torch.empty(256).view(16, 16)[:2]
        return kept + 1

    found = recorded(run).lifetimes()
    assert [each.n_bytes for each in found] == [KIB, 128]
    assert found[0].last > 2


def test_what_backward_finds_is_an_activation_unless_it_is_claimed():
    def run(line):
        x = torch.empty(256, requires_grad=True)
        line.claim("parameters", (x,))
        line.enter("forward")
        y = x.exp()
        line.enter("backward")
        y.sum().backward()
        line.claim("gradients", (x.grad,))

    kinds = [each.held_for for each in recorded(run).lifetimes()]
    assert kinds[:2] == ["parameters", "activations"]
    assert "gradients" in kinds
    assert "temporaries" in kinds


def test_what_was_there_before_is_there_once_it_is_claimed():
    """Also where no operator has run yet."""
    with FakeTensorMode():
        x = torch.empty(512)
        line = LifetimeRecorder()
        line.claim("inputs", (x, None))
    (found,) = line.lifetimes()
    assert (found.n_bytes, found.held_for, found.made, found.last) == (2 * KIB, "inputs", 0, 0)


def test_an_address_may_come_back():
    """The second tensor may lie where the first lay: it is another one."""

    def run(line):
        for _ in range(3):
            torch.empty(256)

    found = recorded(run).lifetimes()
    assert [each.made for each in found] == [0, 1, 2]
    assert [each.last for each in found] == [0, 1, 2]
