"""The host's cost of issuing a step, in units of a call that autograd records.

The unit is measured (`devices calibrate`: an addition of 16 × 16 elements that autograd records,
again and again); a step's operators cost more, for they differ, their code is not in the caches,
and modules stand around them. Fitted to eager steps on an H200's host that the device did not
hold up (36 forward passes and train steps, sizes small to xl, GPT-2, Llama and Qwen shapes); of
those half err by more than 8%, for a host's times vary by as much from run to run.
"""

from peakward.prediction.operators.block import n_runs
from peakward.prediction.operators.compiled_module.step import CompiledStep
from peakward.prediction.operators.plan import plan
from peakward.prediction.operators.weights import weights
from peakward.prediction.time.kernels import OPERATORS
from peakward.prediction.time.row_operators import calls_within
from peakward.records.case import Checkpointing, ModelCase, Optimizer
from peakward.records.measurement import Phase
from peakward.records.model_shape import ModelShape
from peakward.records.op_graph import ModuleCapture, Operator, OpGraph

OPERATOR = 1.44
"""One call to torch's dispatcher, in either direction."""
OWN_OPERATOR: dict[Phase, float] = {"forward": 19.0, "backward": 14.0}
"""One call of an operator of Peakward's own, whose dispatch and autograd are Python, without its
launches. On a CPU (torch 2.13, 2.75 µs a recorded addition), of attention that computes nothing:
53 µs forward, 19 without gradients; backward 52, of which some 14 are starting autograd. The kernels of a
fused step of decode are no operators of torch's, but Triton's own launch of one takes 17 on a CPU (24 µs for
1.42), before the driver is called."""
BLOCK_FORWARD = 17.0
"""The modules of a block, their hooks and Python."""
BLOCK_BACKWARD = 58.0
"""Its some twenty nodes of the autograd graph, beyond the operators in them."""
SEGMENT = 87.0
"""Entering and leaving one recomputed run of blocks."""
RECOMPUTED: dict[Checkpointing, float] = {"sqrt": 87.0, "every-block": 87.0, "selective": 350.0}
"""A block that is run again, beyond the operators; selective sees each in Python twice."""
FORWARD_SHARE: dict[Checkpointing, float] = {"sqrt": 0.37, "every-block": 0.37, "selective": 0.5}
"""Share of both that falls in the forward pass, where hooks pack what is saved and selective sees each
operator first. By time beyond the operators' own on a CPU (torch 2.13, 12 blocks of 32 wide, four
runs): 0.33 to 0.39, selective 0.49 to 0.50. It matters where the device is busy with the optimiser
meanwhile: with all of it in the backward pass 2.7B at 4 × 128, selective, was told 209 ms and took
156."""
OPTIMIZER: dict[Optimizer, tuple[float, float]] = {
    "adamw-foreach": (290.0, 1.2),
    "adamw-fused": (120.0, 0.45),
    "adamw-loop": (100.0, 22.0),
    "adamw-triton": (100.0, 3.0),
    "adamw-bf16-states": (100.0, 3.0),
    "adamw-8bit-states": (100.0, 3.0),
}
"""A step of it, and each tensor in it."""

BEFORE_FOREACH = 1 / 3
"""Share of a step of AdamW over lists that the host needs before it launches anything: lists are made, and
steps counted. It was 25% to 35% of its time in traces of an H200 of three steps with 170 to 270 launches."""


def calls(case: ModelCase, graph: OpGraph, phase: Phase) -> float:
    """Units that the host needs for one phase of the case's step, whose operators are `graph`'s."""
    n_calls = n_operators(graph, phase)
    own = own_calls(graph, phase)
    n_blocks = case.model.n_layers * case.workload.accumulate
    in_forward = FORWARD_SHARE.get(case.configuration.checkpointing, 0.0)
    if phase == "forward":
        recomputation = in_forward * _recomputation(case, n_blocks)
        return OPERATOR * n_calls + own + BLOCK_FORWARD * n_blocks + recomputation
    if phase == "backward":
        recomputation = (1 - in_forward) * _recomputation(case, n_blocks)
        return OPERATOR * n_calls + own + BLOCK_BACKWARD * n_blocks + recomputation
    a_step, a_tensor = OPTIMIZER[case.configuration.optimizer]
    return a_step + a_tensor * sum(each.n for each in weights(plan(case)))


def n_operators(graph: OpGraph, phase: Phase) -> int:
    """Calls to torch's dispatcher, those within others too."""
    own = (each for each in graph.operators if each.phase == phase)
    return sum(each.count * calls_within(each) for each in own)


def own_calls(graph: OpGraph, phase: Phase) -> float:
    """Units that operators of Peakward's own cost beyond torch's."""
    found = (each for each in graph.operators if each.name in OPERATORS)
    n_calls = sum(each.count for each in found if each.phase == phase)
    return n_calls * (OWN_OPERATOR.get(phase, OPERATOR) - OPERATOR)


def _recomputation(case: ModelCase, n_blocks: int) -> float:
    """Units of recomputation in both passes; without gradients nothing is made anew."""
    checkpointing = case.configuration.checkpointing
    if checkpointing == "none" or not case.workload.trains:
        return 0.0
    runs = n_runs(case.model.n_layers, checkpointing) * case.workload.accumulate
    return SEGMENT * runs + RECOMPUTED[checkpointing] * n_blocks


# The host's cost of replaying a captured step, in the same units.

REPLAY = 2.5
"""One launch of the graph: its calls and the two copies' took 18 and 28 µs in profiles of graphs of
434 and 1,456 nodes on an H200's host."""


def captured_calls(_case: ModelCase, graph: OpGraph, phase: Phase) -> float:
    """As `calls`, of a case with a CUDA graph: all of it at the step's begin."""
    if phase != "forward":
        return 0.0
    copies = sum(
        each.count
        for each in graph.operators
        if each.name == "aten.copy_" and each.module is None  # Else into a cache, in the graph.
    )
    return REPLAY + OPERATOR * copies


# The host's cost of issuing a step with compiled blocks, in the same units.
#
# A compiled block is one call in each direction: its guards are checked, its inputs and saved tensors
# handed over, and then its kernels launched from generated Python. What is outside is eager.
#
# Fitted to the medians of steps that an H200's host held up: eight forward passes and six train steps
# (sizes small to xl), all of bf16-mixed with fused attention, in which a block launches 15 and 22
# kernels; so a launch's own cost is not told from its call's, and is taken to be one recorded call's.
# With one size after another left out, a call forward comes to 25 to 26.5, and backward to 82 to 84 but
# for 124 without medium: hosts vary, and steps of `small` with the same host's work took 15 to 27 ms.

LAUNCH = 1.0
"""One kernel out of generated code, with the tensor that it writes to."""
CALL: dict[Phase, float] = {"forward": 25.5, "backward": 84.0}
"""Units of one block, or of the readout."""
IN_A_CALL = 6
"""Parameters of a block of the reference decoder, whose guards and arguments are in `CALL`."""
PARAMETER: dict[Phase, float] = {"forward": 1.0, "backward": 3.4}
"""A further parameter of a call. On a CPU (torch 2.13, 1.4 to 1.5 µs a recorded addition), of sums of 2 to
128 small parameters, twice: 0.53 to 0.59 forward without gradients, 1.0 to 1.1 with them, and 3.3 to 3.6 more
backward."""
WITHOUT_GRADIENTS = 0.55
"""As `PARAMETER`, where nothing trains."""


def compiled_calls(case: ModelCase, graph: OpGraph, phase: Phase) -> float:
    """As `calls`, of a case that is compiled."""
    if phase == "optimizer":
        return calls(case, graph, phase)
    totals = graph.totals(lambda each: (each.phase, _is_compiled(each)))
    launched, eager = (
        totals[phase, each].n_calls if (phase, each) in totals else 0 for each in (True, False)
    )
    n_compiled = (case.model.n_layers + 1) * case.workload.accumulate
    more = (_parameters_of_block(case.model) - IN_A_CALL) * case.model.n_layers
    more *= case.workload.accumulate
    own = own_calls(graph, phase)
    within = LAUNCH * launched + own + CALL[phase] * n_compiled + _a_parameter(case, phase) * more
    return within + OPERATOR * eager


def _a_parameter(case: ModelCase, phase: Phase) -> float:
    return WITHOUT_GRADIENTS if case.workload.pass_ == "forward" else PARAMETER[phase]


def _parameters_of_block(shape: ModelShape) -> int:
    a_norm = 2 if shape.norm == "layernorm" else 1
    return 4 + 2 * a_norm + shape.qkv_bias + 3 * shape.bias


def compiled_module_calls(capture: ModuleCapture, step: CompiledStep, phase: Phase) -> float:
    """As `module_calls`, of a module with compiled parts: each is a call, and what is outside is eager. The
    costs of a call are those of the reference decoder's blocks."""
    eager, launched, graphs = (
        found.get(phase, 0) for found in (step.n_eager, step.n_launched, step.n_graphs)
    )
    if phase == "optimizer":
        return module_calls(capture, phase)
    a_parameter = WITHOUT_GRADIENTS if capture.pass_ == "forward" else PARAMETER[phase]
    more = step.n_parameters - IN_A_CALL * graphs
    within = LAUNCH * launched + CALL[phase] * graphs + a_parameter * more
    assert capture.compiled is not None
    if phase == "forward":
        return within + OPERATOR * eager + MODULE * capture.compiled.n_module_calls
    n_nodes = NODES_OF_AN_OPERATOR * step.n_eager.get("forward", 0)
    return within + OPERATOR * eager + NODE * n_nodes


def _is_compiled(operator: Operator) -> bool:
    """Autograd adds a further micro-batch's gradients up outside compiled code."""
    within = (operator.module or "").startswith(("blocks.", "readout"))
    return within and operator.name != "aten.add_"


# The host's cost of issuing a captured module's step, in units of a call that autograd records.
#
# The reference decoder's costs of a block spread over what a block has: nine calls of modules, and for the
# backward pass 51 nodes, of which six add to a parameter's gradient. Fitted to nothing else.

MODULE = BLOCK_FORWARD / 9
NODE = BLOCK_BACKWARD / 51
NODES_OF_AN_OPERATOR = 51 / 25
"""Where they are not counted: for each operator of a block's forward pass."""


def module_calls(capture: ModuleCapture, phase: Phase) -> float:
    """Units that the host needs for one phase of the module's step."""
    n_calls = n_operators(capture.graph, phase)
    if phase == "forward":
        return OPERATOR * n_calls + MODULE * capture.n_module_calls
    if phase == "backward":
        return OPERATOR * n_calls + NODE * (capture.n_nodes + capture.n_trained)
    a_step, a_tensor = OPTIMIZER[capture.optimizer]
    return a_step + a_tensor * capture.n_trained
