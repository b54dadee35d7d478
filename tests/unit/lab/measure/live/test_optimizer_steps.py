"""Which steps of optimizers end a step of the loop."""

import torch

from peakward.lab.measure.live.optimizer_steps import OptimizerSteps


def optimizer():
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    return torch.optim.SGD([parameter], lr=0.1)


def test_those_of_the_first_that_steps_and_of_no_other():
    seen, first, second = [], optimizer(), optimizer()
    with OptimizerSteps(lambda: seen.append("step")):
        for _ in range(3):
            first.step()
            second.step()
    assert len(seen) == 3


def test_none_before_and_none_after():
    seen, only = [], optimizer()
    only.step()
    with OptimizerSteps(lambda: seen.append("step")):
        pass
    only.step()
    assert seen == []
