"""Weights rounded with an eye on what they multiply, and int8 activations whose outliers were moved.

They are of the formats of `reference`, so that the same kernels multiply by them. torchao 0.18 has both as
prototypes in formats of its own; its GPTQ makes int4 with the package mslk alone, which needs a GPU.
"""

import torch
from torch import Tensor

from peakward.kernels.ops.quantized_matmul.reference import INT4_GROUPS, packed

DAMPING = 0.01
"""The share of the diagonal's mean that is added to it: the setting of GPTQ's authors."""
PARTS = tuple(1 - 0.04 * each for each in range(8))
"""The parts of a group's widest step that are tried."""
AT_ONCE = 64
"""Columns whose errors go to those behind them in one product."""
STRENGTH = 0.5
"""The part of an outlier that goes to the weights: SmoothQuant's α for most models."""


def int4_weight(
    weight: Tensor, moment: Tensor, *, group: int, damping: float = DAMPING
) -> tuple[Tensor, Tensor]:
    """Groups in the form of `reference.int4_weight`, rounded column by column (Frantar et al. 2022, "GPTQ",
    algorithm 1): the error of each goes to the columns that are rounded later, as changes the product least.

    Columns of larger inputs come first, while many are left to take their errors (the authors' "act-order"),
    wherever they stand, so that steps are chosen before: see `steps`. SmolLM2-135M, a few of whose inputs are
    far larger than the others, lost 0.22 nats a token with columns in their own order and symmetric steps of
    64 columns, 0.057 so; of 32 columns 0.038. Where inputs are uncorrelated the moment is diagonal, no error
    has a better place, and the weight is rounded to the nearest number of its steps.

    Args:
        weight: (n, k).
        moment: XᵀX of the inputs X (rows, k) that the weight is to multiply, (k, k): half the Hessian of
            the squared error of the product.
        group: neighbouring columns that share a scale.
        damping: the share of the diagonal's mean that is added to it, so that it can be inverted.

    Returns:
        The packed weight (see `reference.packed`) of numbers from 0 to 15, and the scales, (k / group, n) of
        fp32, of either sign: weight ≈ (stored - 8) · scale.

    Raises:
        ValueError: a group that is none of `INT4_GROUPS` or does not divide k, a moment of another shape
            or of inputs that are all 0.
    """
    k = weight.shape[1]
    if group not in INT4_GROUPS or k % group:
        groups = ", ".join(map(str, INT4_GROUPS))
        raise ValueError(f"expected a group of {groups} that divides {k} columns, got {group}")
    if moment.shape != (k, k) or not (mean := float(moment.diagonal().mean())) > 0:
        raise ValueError(
            f"expected the moment ({k}, {k}) of inputs that are not all 0, got {tuple(moment.shape)}"
        )
    squares = moment.diagonal()
    order = squares.argsort(descending=True)
    scale = steps(weight.float().unflatten(1, (-1, group)), squares.float().view(-1, group))
    step = scale.masked_fill(scale == 0, 1)[:, order // group]
    damped = moment.double()[order][:, order]
    damped.diagonal().add_(damping * mean)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    # Row j: how column j's error, over the diagonal, is taken from each column behind it.
    spread = torch.linalg.cholesky(inverse, upper=True).float()
    stored = _in_order(weight.float()[:, order], step, spread)
    return packed(stored[:, order.argsort()] + 8), scale.t().contiguous()


def steps(grouped: Tensor, squares: Tensor) -> Tensor:
    """The step of each group, the one of `PARTS` of its widest whose roundings add least to the squared error
    of the product, were inputs uncorrelated.

    By the widest step the group's largest element is -8 of them, so that all 16 numbers are of use: the step
    has the opposite sign of that element, and the other side of 0 ends at 7.

    Args:
        grouped: (n, groups, group).
        squares: (groups, group), the sums of the squared inputs.

    Returns:
        (n, groups).
    """
    least, most = grouped.aminmax(dim=-1)
    widest = torch.where(most > -least, most, least) / -8
    best, chosen = torch.full_like(widest, torch.inf), widest
    for part in PARTS:
        step = part * widest
        rounded = _numbers(grouped, step.masked_fill(step == 0, 1)[..., None]) * step[..., None]
        error = ((rounded - grouped).square_() * squares).sum(-1)
        chosen = torch.where(error < best, step, chosen)
        best = torch.minimum(error, best)
    return chosen


def _in_order(left: Tensor, step: Tensor, spread: Tensor) -> Tensor:
    """The numbers (n, k) of columns in the order that they are rounded in, from -8 to 7; `left` is
    overwritten."""
    k, stored = left.shape[1], torch.empty_like(left)
    for start in range(0, k, AT_ONCE):
        end = min(start + AT_ONCE, k)
        columns, errors = left[:, start:end], torch.empty_like(left[:, start:end])
        for at in range(end - start):
            row, own = spread[start + at, start:end], step[:, start + at]
            stored[:, start + at] = _numbers(columns[:, at], own)
            errors[:, at] = (columns[:, at] - stored[:, start + at] * own) / row[at]
            columns[:, at + 1 :].addr_(errors[:, at], row[at + 1 :], alpha=-1)
        left[:, end:].addmm_(errors, spread[start:end, end:], alpha=-1)
    return stored


def _numbers(weight: Tensor, step: Tensor) -> Tensor:
    return (weight / step).round_().clamp_(-8, 7)


def smoothing(largest: Tensor, weight: Tensor, *, strength: float = STRENGTH) -> Tensor:
    """The factors that even out inputs (Xiao et al. 2023, "SmoothQuant", equation 4): inputs are divided by
    them and the weight's columns multiplied, which leaves the product as it is.

    Args:
        largest: (k,), the largest absolute value of each input.
        weight: (n, k).
        strength: 0 leaves all to the inputs, 1 to the weight.

    Returns:
        (k,) in fp32; 1 where either is 0.
    """
    columns = weight.abs().amax(0).float()
    factors = largest.float() ** strength / columns ** (1 - strength)
    return factors.masked_fill((largest == 0) | (columns == 0), 1)


def int8_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Each row of x (..., k) by its largest element, when it is met: x ≈ stored · scale.

    Returns:
        (..., k) of int8, from -127 to 127, and the scales, (..., 1) of fp32.
    """
    scale = x.float().abs().amax(-1, keepdim=True) / 127
    step = scale.masked_fill(scale == 0, 1)
    return (x.float() / step).round().clamp(-127, 127).to(torch.int8), scale


def int8_by_int8(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """x (..., k), rounded row by row, times the transposed weight, both of int8.

    Products are summed in fp32, exactly up to 2^24: as in int32, but for sums of more than a thousand of
    the largest products.

    Args:
        weight: (n, k) of int8, with one scale a channel.
        scale: (1, n), as `reference.int8_weight` without a group gives it.

    Returns:
        (..., n) in x's dtype.
    """
    rows, row_scale = int8_rows(x)
    return (rows.float() @ weight.float().mT * row_scale * scale.float()).to(x.dtype)
