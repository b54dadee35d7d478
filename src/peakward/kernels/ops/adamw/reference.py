"""AdamW as its paper has it, one tensor at a time."""

import torch
from torch import Tensor


def update(
    parameter: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    step: Tensor,
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> None:
    """One update in place (Loshchilov & Hutter 2019, algorithm 2, with a decoupled decay of
    lr·weight_decay as torch has it).

    Args:
        parameter, gradient, first, second: of one shape, each in its own floating type. The
            arithmetic is done in at least fp32 and rounded once when stored.
        step: the number of this update, from 1, a scalar on the parameter's device.
    """
    beta1, beta2 = betas
    dtype = torch.promote_types(parameter.dtype, torch.float32)
    p, g, m, v = (each.to(dtype) for each in (parameter, gradient, first, second))
    count = step.to(dtype)
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    corrected = (v / (1 - beta2**count)).sqrt()
    p = p * (1 - lr * weight_decay) - lr / (1 - beta1**count) * m / (corrected + eps)
    parameter.copy_(p)
    first.copy_(m)
    second.copy_(v)
