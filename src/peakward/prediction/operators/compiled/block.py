"""One block in compiled code, kernel by kernel as an H200 ran it (torch 2.11, recorded allocations): torch's
products and attention, Peakward's operators, and between them what Inductor fuses. Blocks of other parts are
`traced`.

A block is one graph forward and one backward. The gradients of its weights are cast to the types of
the weights at the very end, so that until then those of all four lie there in the compute type.
"""

from typing import NamedTuple, get_args

from peakward.levers.registry import at_work
from peakward.prediction.operators.compiled import attention, kernels
from peakward.prediction.operators.compiled.attention import KERNELS, SavedAttention
from peakward.prediction.operators.compiled.kernels import Kernels, SavedLinear
from peakward.prediction.operators.compiled.norms import SavedNorm, stream
from peakward.prediction.operators.compiled.reductions import WIDEST_IN_PARTS
from peakward.prediction.operators.linear import BLOCK, layers
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import tensor
from peakward.prediction.operators.writer import Value
from peakward.records.case import Checkpointing, ModelCase, ModulePass
from peakward.records.errors import PeakwardError
from peakward.records.op_graph import Operand


class SavedBlock(NamedTuple):
    """The values that the forward graph returns beside its result."""

    attention_norm: SavedNorm
    qkv: SavedLinear
    attention: SavedAttention
    out: SavedLinear
    ff_norm: SavedNorm
    up: SavedLinear
    both: Value
    down: SavedLinear

    @property
    def kept(self) -> tuple[Value, ...]:
        """All of it but the block's input, which its caller has."""
        layers_ = (self.qkv, self.out, self.up, self.down)
        return (
            *(each for layer in layers_ for each in (layer.x, layer.weight)),
            *self.attention.kept,
            *(*self.attention_norm.statistics, *self.ff_norm.statistics),
            *self.ff_norm.made,
            self.both,
        )


def forward(on: Kernels, plan: Plan, x: Value) -> tuple[SavedBlock, Value]:
    """The residual stream → the same behind the block."""
    layer, norms = layers(plan), stream(plan)
    with on.module(f"{BLOCK}.attention_norm"):
        first, y = norms.forward(on, plan, x)
    qkv, packed = kernels.linear_forward(on, layer.qkv, y)
    with on.module(f"{BLOCK}.attention"):
        attended, mixed = attention.forward(on, plan, packed)
    out, beside = kernels.linear_forward(on, layer.out, mixed)
    with on.module(BLOCK):
        second, y = norms.forward(on, plan, x, beside)
    up, both = kernels.linear_forward(on, layer.up, y)
    with on.module(f"{BLOCK}.ff"):
        gated = _activated(on, plan, both)
    down, added = kernels.linear_forward(on, layer.down, gated)
    with on.module(BLOCK):
        behind = norms.behind(on, plan, x, second, added)
    return SavedBlock(first, qkv, attended, out, second, up, both, down), behind


def backward(
    on: Kernels, plan: Plan, saved: SavedBlock, gradient: Value
) -> tuple[Value, list[Value]]:
    """Gradient of the residual stream behind the block → before it, and of all parameters."""
    norms = stream(plan)
    with on.module(BLOCK):
        narrow = on.narrowed(gradient, plan.compute)
    gated = kernels.linear_of_input(on, saved.down, narrow)
    down = kernels.linear_of_weight(on, saved.down, narrow)
    with on.module(f"{BLOCK}.ff"):
        both = _activated_backward(on, plan, gated, saved.both)
    normed = kernels.linear_of_input(on, saved.up, both)
    up = kernels.linear_of_weight(on, saved.up, both)
    with on.module(BLOCK):
        between = norms.between(on, plan, saved.ff_norm, normed, gradient)
    mixed = kernels.linear_of_input(on, saved.out, between.narrow)
    with on.module(f"{BLOCK}.attention"):
        attended = attention.backward(on, plan, saved.attention, mixed)
    out = kernels.linear_of_weight(on, saved.out, between.narrow)
    with on.module(f"{BLOCK}.attention"):
        packed = attention.joined(on, plan, attended)
    normed = kernels.linear_of_input(on, saved.qkv, packed)
    with on.module(BLOCK):
        before, weights = norms.before(on, plan, saved.attention_norm, normed, between)
    qkv = kernels.linear_of_weight(on, saved.qkv, packed)
    pairs = ((saved.out, out), (saved.qkv, qkv), (saved.down, down), (saved.up, up))
    return before, weights + [kernels.widened(on, layer, each) for layer, each in pairs]


def _activated(on: Kernels, plan: Plan, both: Value) -> Value:
    """Result of the feed-forward network's first product → input of the second."""
    if plan.gating is not None:
        made: Value = plan.gating.forward(on, plan, both)[1]
        return made
    return on.fused("pointwise", ("mul", "silu"), (both,), (_gated(plan),))[0]


def _activated_backward(on: Kernels, plan: Plan, gradient: Value, both: Value) -> Value:
    """Gradient of what goes into the second product → of what the first gave, of which `both` is kept."""
    if plan.gating is not None:
        made: Value = plan.gating.backward(on, plan, (both,), gradient)
        return made
    names = ("cat", "mul", "silu", "silu_backward")
    return on.fused("pointwise", names, (gradient, both), (both.operand,))[0]


def _gated(plan: Plan) -> Operand:
    return tensor(plan.compute, plan.batch, plan.seq, plan.shape.d_ff)


# Which compiled cases the closed form covers, beyond what it covers of eager ones.
#
# Profiles of what Inductor fuses are of blocks with RMSNorm, RoPE and SwiGLU without biases.

RECOMPUTED: tuple[Checkpointing, ...] = ("none", "every-block", "selective")
"""Checkpointing within the compiled code of a block."""
_WITH_GRADIENTS: tuple[ModulePass, ...] = ("forward_backward", "train_step")
_WIDTH = 8
"""torch pads what attention's kernels get to multiples of so many numbers a head."""


def is_profiled(plan: Plan, checkpointing: Checkpointing) -> bool:
    """Whether the kernels of the plan's blocks are those of profiles; else they follow from rules."""
    shape = plan.shape
    windowed = shape.window is not None and shape.window < plan.seq
    has_bias = shape.bias or shape.qkv_bias
    parts = (shape.norm, shape.positions, shape.activation, shape.gated)
    of_profiles = parts == ("rmsnorm", "rope", "silu", True) and not has_bias and not windowed
    repeats = plan.attention == "naive" and shape.n_kv_heads < shape.n_heads
    return of_profiles and checkpointing == "none" and not repeats and plan.precision != "fp8"


def expect_covered(case: ModelCase, plan: Plan) -> None:
    """Nothing where the closed form gives the compiled case's operators.

    Raises:
        PeakwardError: where it does not.
    """
    shape, configuration = case.model, case.configuration
    _expect("pass of compiled blocks", case.workload.pass_, *get_args(ModulePass))
    _expect("compile_scope", configuration.compile_scope, "block")
    # The blocks of a run are compiled one by one, and run again by Python.
    _expect("checkpointing of compiled blocks", configuration.checkpointing, *RECOMPUTED)
    # Peakward's other loss writes over its logits, of which a compiler may make a copy first.
    _expect("loss of compiled blocks", configuration.loss, "torch", "chunked", "recomputed")
    _expect("weights of compiled blocks", configuration.weights, "dense")
    for axis, value in at_work(configuration):
        if value in axis.work and value not in axis.own_kernels:  # Inductor would fuse it.
            _expect(f"{axis.name} of compiled blocks", value, axis.default, *axis.own_kernels)
    if configuration.precision == "fp8":
        # Without gradients a scale is found at each use, by a reduction of a whole tensor to one number.
        _expect("pass of compiled blocks in fp8", case.workload.pass_, *_WITH_GRADIENTS)
        # The histories of scales change with each call, of which a recomputation is one more.
        _expect("checkpointing of compiled blocks in fp8", configuration.checkpointing, "none")
    _expect("kernel of compiled attention", plan.attention, *KERNELS)
    if not is_profiled(plan, configuration.checkpointing):
        rest = shape.head_dim % _WIDTH
        _expect(f"remainder of head_dim by {_WIDTH} in compiled blocks of such parts", rest, 0)
    if shape.d_model > WIDEST_IN_PARTS:
        raise PeakwardError(
            f"expected a d_model of at most {WIDEST_IN_PARTS} of compiled blocks for kernels in closed "
            f"form, got {shape.d_model}: measure the case instead, or leave the compilation"
        )


def _expect(setting: str, got: object, *covered: object) -> None:
    if got not in covered:
        raise PeakwardError(
            f"expected {setting} {' or '.join(map(str, covered))} for kernels in closed form, "
            f"got {got}: measure the case instead, or change it"
        )
