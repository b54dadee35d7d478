"""A compiled block or readout of whose kernels no profile tells: by the rules of what Inductor fuses
(`compiled_module`), from the operators of the eager one."""

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from peakward.prediction.operators import block, readout
from peakward.prediction.operators.compiled.trace import Trace
from peakward.prediction.operators.compiled.traced_attention import TRACED
from peakward.prediction.operators.compiled_module.step import Code, compiled, told
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import Tape
from peakward.records.case import Checkpointing
from peakward.records.measurement import Phase
from peakward.records.op_graph import Operator

_KEPT: dict[Checkpointing, frozenset[str] | None] = {
    "none": None,
    "every-block": frozenset(),
    "selective": block.KEPT_BY_SELECTIVE,
}


class Traced(NamedTuple):
    """The kernels of a part, and which of its values its neighbours know."""

    code: Code
    operators: tuple[Operator, ...]
    """Those that kernels are made of."""
    scratch: Mapping[int, tuple[int, ...]]
    """Bytes that a call has for the meantime, by the index of its operator."""
    x: int
    """The residual stream before the part."""
    behind: int
    """The result."""
    given: int | None
    """The gradient of the stream behind a block; None of a readout, and where no backward pass follows."""
    before: int | None
    """The gradient of the stream before the part."""

    @property
    def leaving(self) -> frozenset[int]:
        """Values that are needed outside."""
        return frozenset(i for i, value in enumerate(self.code.values) if value.leaves)

    def write(self, tape: Tape, *, backward: bool) -> None:
        """Writes the kernels of one pass down, for time."""
        phase: Phase = "backward" if backward else "forward"
        for each in self.code.backward if backward else self.code.forward:
            tape.again(told(each, self.operators, phase))


@lru_cache(maxsize=64)
def traced_block(plan: Plan, checkpointing: Checkpointing = "none") -> Traced:
    """The block of a plan. Where it is recomputed, its compiled code does that itself."""
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
    code = compiled(on.part, _KEPT[checkpointing])
    return Traced(code, tuple(on.operators), on.scratch, first, end, given, before)


@lru_cache(maxsize=64)
def traced_readout(plan: Plan) -> Traced:
    """The readout of a plan: to its loss, or where no backward pass follows to the logits."""
    on = Trace()
    x, before = on.given(plan.hidden), None
    first = on.number(x)
    if plan.differentiated:
        saved, loss = readout.cross_entropy(on, plan, x)
        end = on.leave(loss)
        with on.backward():
            into_logits = readout.into_logits(on, plan, saved)
            before = on.leave(readout.backward(on, plan, saved, into_logits))
    else:
        *_, logits = readout.logits(on, plan, x)
        end = on.leave(logits)
    return Traced(
        compiled(on.part), tuple(on.operators), on.scratch, first, end, given=None, before=before
    )
