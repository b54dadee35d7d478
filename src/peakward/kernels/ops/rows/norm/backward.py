"""Gradients of normalised rows: RMSNorm, and with a mean LayerNorm.

The gradients of weight and bias are sums over rows, in two stages: programs share the rows out among
them, each sums up its own in registers, and `rows.triton.column_sums` adds these. Of rows too wide for that
a program has some columns (`spread_backward`), or they are read once more, by columns (`pieces`).
"""

from typing import NamedTuple

from torch import Tensor

from peakward.kernels.ops.rows.candidates import many_tiles_a_program, spread
from peakward.kernels.ops.rows.layout import RowSettings, multiprocessors
from peakward.kernels.ops.rows.norm.pieces import in_pieces
from peakward.kernels.ops.rows.norm.problem import Partials, Problem, problem_of
from peakward.kernels.ops.rows.norm.settings import SpreadSettings, backward_settings_for
from peakward.kernels.ops.rows.norm.spread_backward import spread_backward
from peakward.kernels.ops.rows.norm.whole import whole
from peakward.kernels.ops.rows.triton import column_sums
from peakward.kernels.ops.tuning import tuned


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
    return _started(problem, settings or _settings_of(problem))


def _started(problem: Problem, settings: RowSettings | SpreadSettings) -> Gradients:
    if isinstance(settings, SpreadSettings):
        partials = spread_backward(problem, settings)
    elif settings.columns < problem.x.shape[1]:
        partials = in_pieces(problem, settings)
    else:
        partials = whole(problem, settings)
    return Gradients(problem.out, *_summed(partials, problem.weight, problem.bias))


def _settings_of(problem: Problem) -> RowSettings | SpreadSettings:
    """By rule, or where asked for the fastest."""
    rule = _by_rule(problem)
    return tuned(
        "norm backward",
        problem.kind,
        problem.x.device,
        rule=rule,
        others=lambda: _others(problem, rule),
        start=lambda each: _started(problem.anew(), each),
    )


def _others(
    problem: Problem, rule: RowSettings | SpreadSettings
) -> tuple[RowSettings | SpreadSettings, ...]:
    if isinstance(rule, SpreadSettings):
        return spread(problem.itemsize)
    if rule.programs is None or rule.columns < problem.x.shape[1]:
        return ()
    return many_tiles_a_program(rule, multiprocessors(problem.x.device))


def _by_rule(problem: Problem) -> RowSettings | SpreadSettings:
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
