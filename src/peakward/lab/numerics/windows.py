"""Windows of delayed scales before a step whose numbers are judged.

In training they hold other magnitudes than the step's own; at a first use nothing, so that each tensor gives
its scale itself.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import nn

from peakward.kernels.ops.forwards import states
from peakward.kernels.ops.fp8_linear.scales import FIRST

Kept = Callable[[], AbstractContextManager[None]]
"""Puts all that a step changes back on leaving."""
BY_FOUR = 2 << 23
"""Added to the bits of an fp32 number, it makes that four times as large."""


def fill(model: nn.Module, kept: Kept, step: Callable[[], object]) -> None:
    """Take a step, and put all back but the windows, which then `grow`."""
    with kept():
        step()
        seen = [(each, each.clone()) for each in states(model)]
    for each, held in seen:
        each.copy_(held)
    grow(model)


def grow(model: nn.Module) -> None:
    """Let the windows of a model remember magnitudes four times as large as they saw, in place. The next step
    of the same numbers then takes scales that its tensors do not give themselves."""
    for each in states(model):
        window = each[FIRST:]
        window.add_(torch.where(window > 0, BY_FOUR, 0).to(window.dtype))
