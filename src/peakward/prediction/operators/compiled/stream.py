"""Whose norm stands between the residual stream and the products of compiled code."""

from collections.abc import Callable
from typing import Any, NamedTuple

from peakward.prediction.operators.compiled import norms, own_norms
from peakward.prediction.operators.compiled.kernels import Kernels
from peakward.prediction.operators.compiled.norms import SavedNorm
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.writer import Value


class Stream(NamedTuple):
    """The functions of `norms`, or those of `own_norms`; what `between` gives is for `before` to read."""

    forward: Callable[..., tuple[SavedNorm, Value]]
    behind: Callable[[Kernels, Plan, Value, SavedNorm, Value], Value]
    between: Callable[[Kernels, Plan, SavedNorm, Value, Value], Any]
    before: Callable[[Kernels, Plan, SavedNorm, Value, Any], tuple[Value, list[Value]]]
    last: Callable[[Kernels, Plan, SavedNorm, Value], tuple[Value, Value]]


_TORCH = Stream(norms.forward, norms.behind, norms.between, norms.before, norms.last)
_OWN = Stream(
    own_norms.forward, own_norms.behind, own_norms.between, own_norms.before, own_norms.last
)


def stream(plan: Plan) -> Stream:
    """The case's."""
    return _TORCH if plan.norm is None else _OWN
