"""The host's cost of issuing a step with compiled blocks, in the units of `dispatch`.

A compiled block is one call in each direction: its guards are checked, its inputs and saved tensors
handed over, and then its kernels launched from generated Python. What is outside is eager.

Fitted to the medians of steps that an H200's host held up: eight forward passes and six train steps
(sizes small to xl), all of bf16-mixed with fused attention, in which a block launches 15 and 22
kernels; so a launch's own cost is not told from its call's, and is taken to be one recorded call's.
With one size after another left out, a call forward comes to 25 to 26.5, and backward to 82 to 84 but
for 124 without medium: hosts vary, and steps of `small` with the same host's work took 15 to 27 ms.
"""

from peakward.prediction.time import dispatch
from peakward.records.case import ModelCase
from peakward.records.measurement import Phase
from peakward.records.op_graph import Operator, OpGraph

LAUNCH = 1.0
"""One kernel out of generated code, with the tensor that it writes to."""
CALL: dict[Phase, float] = {"forward": 25.5, "backward": 84.0}
"""Units of one block, or of the readout."""


def calls(case: ModelCase, graph: OpGraph, phase: Phase) -> float:
    """As `dispatch.calls`, of a case that is compiled."""
    if phase == "optimizer":
        return dispatch.calls(case, graph, phase)
    totals = graph.totals(lambda each: (each.phase, _is_compiled(each)))
    launched, eager = (
        totals[phase, each].n_calls if (phase, each) in totals else 0 for each in (True, False)
    )
    n_compiled = (case.model.n_layers + 1) * case.workload.accumulate
    own = dispatch.own_calls(graph, phase)
    return LAUNCH * launched + own + CALL[phase] * n_compiled + dispatch.OPERATOR * eager


def _is_compiled(operator: Operator) -> bool:
    """Autograd adds a further micro-batch's gradients up outside compiled code."""
    within = (operator.module or "").startswith(("blocks.", "readout"))
    return within and operator.name != "aten.add_"
