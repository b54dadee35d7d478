"""What issuing a step costs the host, in units of a call that autograd records.

The unit is measured (`devices calibrate`: an addition of 16 × 16 elements that autograd records,
again and again); a step's operators cost more, for they differ, their code is not in the caches,
and modules stand around them. Fitted to eager steps on an H200's host that the device did not
hold up (36 forward passes and train steps, sizes small to xl, GPT-2, Llama and Qwen shapes); of
those half err by more than 8%, for a host's times vary by as much from run to run.
"""

from peakward.prediction.operators.plan import plan
from peakward.prediction.operators.recomputation import n_runs
from peakward.prediction.operators.weights import weights
from peakward.records.case import Checkpointing, ModelCase, Optimizer
from peakward.records.measurement import Phase
from peakward.records.op_graph import OpGraph

OPERATOR = 1.44
"""One call to torch's dispatcher, in either direction."""
BLOCK_FORWARD = 17.0
"""The modules of a block, their hooks and Python."""
BLOCK_BACKWARD = 58.0
"""Its some twenty nodes of the autograd graph, beyond the operators in them."""
SEGMENT = 87.0
"""Entering and leaving one recomputed run of blocks, with the generators' states saved and set."""
RECOMPUTED: dict[Checkpointing, float] = {"sqrt": 87.0, "every-block": 87.0, "selective": 350.0}
"""A block that is run again, beyond the operators; selective sees each in Python twice."""
OPTIMIZER: dict[Optimizer, tuple[float, float]] = {
    "adamw-foreach": (290.0, 1.2),
    "adamw-fused": (120.0, 0.45),
    "adamw-loop": (100.0, 22.0),
    "adamw-triton": (100.0, 3.0),
}
"""A step of it, and each tensor in it."""


def calls(case: ModelCase, graph: OpGraph, phase: Phase) -> float:
    """Units that the host needs for one phase of the case's step, whose operators are `graph`'s."""
    totals = graph.totals(lambda each: each.phase)
    n_calls = totals[phase].n_calls if phase in totals else 0
    n_blocks = case.model.n_layers * case.workload.accumulate
    if phase == "forward":
        return OPERATOR * n_calls + BLOCK_FORWARD * n_blocks
    if phase == "backward":
        return OPERATOR * n_calls + BLOCK_BACKWARD * n_blocks + _recomputation(case, n_blocks)
    a_step, a_tensor = OPTIMIZER[case.configuration.optimizer]
    return a_step + a_tensor * sum(each.n for each in weights(plan(case)))


def _recomputation(case: ModelCase, n_blocks: int) -> float:
    checkpointing = case.configuration.checkpointing
    if checkpointing == "none":
        return 0.0
    runs = n_runs(case.model.n_layers, checkpointing) * case.workload.accumulate
    return SEGMENT * runs + RECOMPUTED[checkpointing] * n_blocks
