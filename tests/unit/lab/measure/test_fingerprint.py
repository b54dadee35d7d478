"""Equal steps have equal names, others have others."""

import functools

import torch
from torch import nn

from peakward.lab.measure.fingerprint import fingerprint


def step():
    return 1


def other_step():
    return 2


class Callable:
    def __call__(self):
        return 3


def test_it_is_stable_and_short():
    assert fingerprint(step, None) == fingerprint(step, None)
    assert len(fingerprint(step, None)) == 16


def test_it_depends_on_the_source():
    steps = [step, other_step, lambda: 4, Callable(), functools.partial(step), print]
    assert len({fingerprint(each, None) for each in steps}) == len(steps)


def test_it_depends_on_every_parameter():
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    names = {fingerprint(step, None), fingerprint(step, net)}
    with torch.no_grad():
        net.weight[1, 2] += 1e-6
        names.add(fingerprint(step, net))
        net.bias.copy_(net.bias.flip(0))
        names.add(fingerprint(step, net))
        names.add(fingerprint(step, net.bfloat16()))
    assert len(names) == 5


def test_strides_and_emptiness_do_not_matter():
    class Holder(nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.weight = nn.Parameter(weight)

    plain = torch.arange(6.0).view(2, 3)
    assert fingerprint(step, Holder(plain)) == fingerprint(step, Holder(plain.t().contiguous().t()))
    assert fingerprint(step, Holder(torch.empty(0))) != fingerprint(step, None)
