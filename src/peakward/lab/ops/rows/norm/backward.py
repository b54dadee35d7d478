"""Gradients of normalised rows: RMSNorm, and with a mean LayerNorm.

The gradients of weight and bias are sums over rows, in two stages: programs share the rows out among
them, each sums up its own in registers, and `rows.triton.column_sums` adds these. Of rows too wide for that
a program has some columns (`spread_backward`), or they are read once more, by columns (`pieces`).
"""

from typing import NamedTuple

from torch import Tensor

from peakward.lab.ops.rows.layout import RowSettings
from peakward.lab.ops.rows.norm.pieces import in_pieces
from peakward.lab.ops.rows.norm.problem import Partials, Problem, problem_of
from peakward.lab.ops.rows.norm.settings import SpreadSettings, backward_settings_for
from peakward.lab.ops.rows.norm.spread_backward import spread_backward
from peakward.lab.ops.rows.norm.whole import whole
from peakward.lab.ops.rows.triton import column_sums


class Gradients(NamedTuple):
    x: Tensor
    weight: Tensor | None
    bias: Tensor | None


def gradients(
    gradient: Tensor,
    s_gradient: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    r: Tensor,
    settings: RowSettings | SpreadSettings | None = None,
) -> Gradients:
    """In fp32 arithmetic, each gradient in its tensor's type.

    Args:
        gradient: of x's shape, as is s_gradient, which is added to x's gradient.
        x: what was normalised, not empty.
        bias: says whether it has a gradient, and of which type.
        mean, r: what `normalise` gave.
        settings: for the width and the device unless told.
    """
    problem = problem_of(gradient, s_gradient, x, weight, bias, mean, r)
    chosen = settings or settings_of(problem)
    if isinstance(chosen, SpreadSettings):
        partials = spread_backward(problem, chosen)
    elif chosen.columns < x.shape[-1]:
        partials = in_pieces(problem, chosen)
    else:
        partials = whole(problem, chosen)
    return Gradients(problem.out, *_summed(partials, weight, bias))


def settings_of(problem: Problem) -> RowSettings | SpreadSettings:
    return backward_settings_for(
        problem.x.shape[1],
        problem.itemsize,
        problem.x.device,
        inputs=len(problem.rows),
        whole_vectors=problem.whole_vectors,
    )


def _summed(
    partials: Partials, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Each parameter's partial sums added, in its type."""
    parts = [
        (sums, each.dtype)
        for sums, each in zip(partials, (weight, bias), strict=True)
        if sums is not None and each is not None
    ]
    found = iter(column_sums(*parts) if parts else ())
    own, own_bias = (None if each is None else next(found) for each in (weight, bias))
    return own, own_bias
