"""A compiled block of whose kernels no profile tells: by the rules of what Inductor fuses
(`compiled_module`), from the operators of the eager block."""

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from peakward.prediction.operators import block
from peakward.prediction.operators.compiled.trace import Trace
from peakward.prediction.operators.compiled.traced_attention import TRACED
from peakward.prediction.operators.compiled_module.step import Code, compiled, told
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import Tape
from peakward.records.op_graph import Operator


class Block(NamedTuple):
    """The kernels of one block, and which of its values its neighbours know."""

    code: Code
    operators: tuple[Operator, ...]
    """Those that kernels are made of."""
    scratch: Mapping[int, tuple[int, ...]]
    """Bytes that a call has for the meantime, by the index of its operator."""
    x: int
    """The residual stream before the block."""
    behind: int
    given: int | None
    """Its gradient behind the block; None where no backward pass follows."""
    before: int | None
    """Its gradient before the block."""


@lru_cache(maxsize=64)
def traced(plan: Plan) -> Block:
    """The block of a plan."""
    on = Trace()
    x = on.given(plan.hidden)
    saved, behind = block.forward(on, plan, x, TRACED)
    first, end = on.number(x), on.leave(behind)
    given = before = None
    if plan.differentiated:
        gradient = on.given(plan.hidden)
        given = on.number(gradient)
        with on.backward():
            before = on.leave(block.backward(on, plan, saved, gradient, TRACED))
    return Block(compiled(on.part), tuple(on.operators), on.scratch, first, end, given, before)


def forward(tape: Tape, plan: Plan) -> None:
    """The kernels of the forward graph, for time."""
    found = traced(plan)
    for each in found.code.forward:
        tape.again(told(each, found.operators, "forward"))


def backward(tape: Tape, plan: Plan) -> None:
    """The kernels of the backward graph."""
    found = traced(plan)
    for each in found.code.backward:
        tape.again(told(each, found.operators, "backward"))
