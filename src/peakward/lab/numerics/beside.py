"""Models beside a live one: the same computation, in which rounding falls otherwise."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def beside(model: nn.Module, seed: int, roundoff: float = 0.0) -> Iterator[None]:
    """Inside, each parameter is multiplied by 1 + ε·r, with a random r of [-1, 1]; on leaving it has its
    value again, bit for bit.

    Args:
        roundoff: the unit roundoff of the type that is computed in. ε is the distance from 1 to its next
            number, and no less than to that of the parameter's own type.
    """
    floats = [each for each in model.parameters() if each.is_floating_point()]
    before = [each.detach().to("cpu", copy=True) for each in floats]
    generators = {each.device: torch.Generator(each.device).manual_seed(seed) for each in floats}
    try:
        with torch.no_grad():
            for each in floats:
                epsilon = max(torch.finfo(each.dtype).eps, 2 * roundoff)
                drawn = torch.empty_like(each).uniform_(-1, 1, generator=generators[each.device])
                each.mul_(1 + epsilon * drawn)
        yield
    finally:
        with torch.no_grad():
            for each, value in zip(floats, before, strict=True):
                each.copy_(value)
