"""Whose norm stands between the residual stream and the products of compiled code."""

from collections.abc import Callable
from typing import Any, NamedTuple

from peakward.prediction.memory.compiled import norms, own_norms
from peakward.prediction.memory.compiled.graph import Buffer, Graph
from peakward.prediction.memory.compiled.norms import SavedNorm
from peakward.prediction.operators.plan import Plan


class Stream(NamedTuple):
    """The functions of `norms`, or those of `own_norms`; what `between` gives is for `before` to read."""

    forward: Callable[..., tuple[SavedNorm, Buffer]]
    behind: Callable[[Graph, Plan, Buffer, SavedNorm, Buffer], Buffer]
    between: Callable[[Graph, Plan, SavedNorm, Buffer, Buffer], Any]
    before: Callable[[Graph, Plan, SavedNorm, Buffer, Any], tuple[Buffer, list[Buffer]]]
    last: Callable[[Graph, Plan, SavedNorm, Buffer], tuple[Buffer, Buffer]]


_TORCH = Stream(norms.forward, norms.behind, norms.between, norms.before, norms.last)
_OWN = Stream(
    own_norms.forward, own_norms.behind, own_norms.between, own_norms.before, own_norms.last
)


def stream(plan: Plan) -> Stream:
    """The case's."""
    return _TORCH if plan.norm is None else _OWN
