"""The host's cost of issuing a captured module's step, in units of a call that autograd records.

The reference decoder's costs of a block (`dispatch`) spread over what a block has: nine calls of
modules, and some thirty operators in the forward pass, of which each makes about one node for the
backward pass. Fitted to nothing else.
"""

from peakward.prediction.time.dispatch import BLOCK_BACKWARD, BLOCK_FORWARD, OPERATOR, OPTIMIZER
from peakward.records.measurement import Phase
from peakward.records.op_graph import ModuleCapture

MODULE = BLOCK_FORWARD / 9
NODE = BLOCK_BACKWARD / 30


def calls(capture: ModuleCapture, phase: Phase) -> float:
    """Units that the host needs for one phase of the module's step."""
    totals = capture.graph.totals(lambda each: each.phase)
    n_calls = {name: found.n_calls for name, found in totals.items()}
    if phase == "forward":
        return OPERATOR * n_calls["forward"] + MODULE * capture.n_module_calls
    if phase == "backward":
        return OPERATOR * n_calls["backward"] + NODE * n_calls["forward"]
    a_step, a_tensor = OPTIMIZER["adamw-foreach"]
    return a_step + a_tensor * capture.n_trained
