"""AdamW as its paper has it, one tensor at a time."""

from typing import Any

import torch
from torch import Tensor

from peakward.kernels.ops.adamw import stored


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


def update_bf16(
    parameter: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    step: Tensor,
    *,
    seed: int,
    number: int,
    **settings: Any,
) -> None:
    """As `update`, of fp32 with moments in bf16, which are rounded at random when they are stored.

    Args:
        seed, number: of the random bits: the optimiser's seed, the parameter's place in it.
        settings: as `update`'s.
    """
    m, v = first.float(), second.float()
    update(parameter, gradient, m, v, step, **settings)
    words = stored.random_words(m.numel(), seed=seed, number=number, step=int(step))
    for moment, new, bits in zip((first, second), (m, v), stored.halves(words), strict=True):
        moment.copy_(stored.to_bf16(new, bits.view(new.shape)))


def update_8bit(
    parameter: Tensor,
    gradient: Tensor,
    first: tuple[Tensor, Tensor],
    second: tuple[Tensor, Tensor],
    step: Tensor,
    *,
    seed: int,
    number: int,
    **settings: Any,
) -> None:
    """As `update_bf16`, with moments as codes and exponents of `stored.encode`."""
    shape, codes = parameter.shape, (stored.FIRST, stored.SECOND)
    m, v = (
        stored.decode(held[0].flatten(), held[1], code).view(shape)
        for held, code in zip((first, second), codes, strict=True)
    )
    update(parameter, gradient, m, v, step, **settings)
    words = stored.random_words(m.numel(), seed=seed, number=number, step=int(step))
    halves = stored.halves(words)
    for held, new, bits, code in zip((first, second), (m, v), halves, codes, strict=True):
        found, exponents = stored.encode(new.flatten(), bits, code)
        held[0].copy_(found.view(shape))
        held[1].copy_(exponents)
