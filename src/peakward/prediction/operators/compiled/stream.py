"""Whose norm stands between the residual stream and the products of compiled code."""

from collections.abc import Callable
from typing import NamedTuple

from peakward.prediction.operators.compiled import norms, own_norms
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import Tape
from peakward.records.op_graph import Operand


class Stream(NamedTuple):
    """The functions of `norms`, or those of `own_norms`."""

    forward: Callable[..., Operand]
    behind: Callable[[Tape, Plan, Operand, Operand], None]
    between: Callable[[Tape, Plan], None]
    before: Callable[[Tape, Plan], None]
    last: Callable[[Tape, Plan], None]


_TORCH = Stream(norms.forward, norms.behind, norms.between, norms.before, norms.last)
_OWN = Stream(
    own_norms.forward, own_norms.behind, own_norms.between, own_norms.before, own_norms.last
)


def stream(plan: Plan) -> Stream:
    """The case's."""
    return _TORCH if plan.norm is None else _OWN
