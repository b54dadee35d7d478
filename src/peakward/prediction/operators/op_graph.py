"""The operators of a step of the reference decoder, in closed form: no model is built.

The same as `lab.levers.capture` sees of the step itself, operator by operator, for eager execution
as torch dispatches it on a CPU or on CUDA. The functions of this room follow the decoder's, line by
line; where the two devices differ, `Plan.device` or `Plan.attention` says which. Of blocks and a
readout that are compiled (`compiled/`), the kernels that Inductor makes stand in place of what they
fuse, as profiles have them or by rules (`compiled/traced.py`); the rest of the step is eager. A
captured step has the same operators, replayed, and copies of its batch.

CUDA's operators are those of torch 2.11; which fused attention it chooses depends on the GPU also
(`attention_backend`). Of a step of fp16 they are those in which no infinity was found, of a mixture of
experts those of balanced routing (`experts`).
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

from peakward.hardware.attention_backend import HOPPER, ComputeCapability
from peakward.prediction.operators import block, fused_step, positions, readout
from peakward.prediction.operators.block import SavedBlock
from peakward.prediction.operators.compiled import block as compiled_block
from peakward.prediction.operators.compiled import readout as compiled_readout
from peakward.prediction.operators.compiled.block import expect_covered, is_profiled
from peakward.prediction.operators.compiled.kernels import Kernels
from peakward.prediction.operators.compiled.readout import pads_head
from peakward.prediction.operators.compiled.traced import Traced, traced_block, traced_readout
from peakward.prediction.operators.plan import Plan, plan
from peakward.prediction.operators.readout import SavedLoss
from peakward.prediction.operators.tape import FLOAT, INT, Tape, tensor
from peakward.prediction.operators.weights import (
    Implementation,
    adamw,
    read_whether_infinite,
    scale_loss,
    unscale,
    update_scale,
    weights,
)
from peakward.prediction.operators.writer import Value, Writer
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.op_graph import OpGraph


class _Parts(NamedTuple):
    """The parts that `compile` compiles. What a forward part gives is for its backward part to read."""

    block: Callable[[Tape, Plan], Any]
    block_backward: Callable[[Tape, Plan, Any], None]
    readout: Callable[[Tape, Plan], Any]
    """To the loss where a backward pass follows, else to the logits."""
    readout_backward: Callable[[Tape, Plan, Any], None]
    embedding: Callable[[Tape, Plan], None] = positions.forward


def _block(tape: Tape, plan: Plan) -> SavedBlock:
    return block.forward(Writer(tape), plan, Value(plan.hidden))[0]


def _block_backward(tape: Tape, plan: Plan, saved: SavedBlock) -> None:
    block.backward(Writer(tape), plan, saved, Value(plan.hidden))


def _readout(tape: Tape, plan: Plan) -> SavedLoss | None:
    on, x = Writer(tape), Value(plan.hidden)
    if plan.differentiated:
        return readout.loss(on, plan, x)
    readout.logits(on, plan, x)
    return None


def _readout_backward(tape: Tape, plan: Plan, saved: SavedLoss) -> None:
    on = Writer(tape)
    readout.backward(on, plan, saved, readout.loss_backward(on, plan, saved))


_EAGER = _Parts(_block, _block_backward, _readout, _readout_backward)


def _compiled_block(tape: Tape, plan: Plan) -> Any:
    return compiled_block.forward(Kernels(tape), plan, Value(plan.hidden))[0]


def _compiled_block_backward(tape: Tape, plan: Plan, saved: Any) -> None:
    compiled_block.backward(Kernels(tape), plan, saved, Value(plan.hidden))


def _compiled_readout(tape: Tape, plan: Plan) -> Any:
    on, x = Kernels(tape), Value(plan.hidden)
    run = compiled_readout.loss if plan.differentiated else compiled_readout.logits
    return run(on, plan, x)


def _compiled_readout_backward(tape: Tape, plan: Plan, saved: Any) -> None:
    compiled_readout.backward(Kernels(tape), plan, saved)


_COMPILED = _Parts(
    _compiled_block, _compiled_block_backward, _compiled_readout, _compiled_readout_backward
)


def _no_backward(_tape: Tape, _plan: Plan, _saved: Any) -> None:
    """A step of decode has no gradients."""


_FUSED_STEP = _Parts(
    fused_step.block_forward,
    _no_backward,
    fused_step.readout_forward,
    _no_backward,
    fused_step.embedding_forward,
)


def _by_rules(of: Callable[[Plan], Traced]) -> tuple[Callable[..., None], Callable[..., None]]:
    return (
        lambda tape, plan: of(plan).write(tape, backward=False),
        lambda tape, plan, _saved: of(plan).write(tape, backward=True),
    )


def op_graph(case: ModelCase, *, compute_capability: ComputeCapability = HOPPER) -> OpGraph:
    """The operators of one step, in which the optimiser's state is already there.

    Args:
        case: what is run.
        compute_capability: of the GPU, 9.0 for an H100 or H200; it means nothing for a CPU.

    Raises:
        PeakwardError: a setting that is not covered, or an attention kernel that torch would not
            run on such inputs.
    """
    planned = plan(case, compute_capability)
    if case.configuration.compile != "none":
        expect_covered(case, planned)
    return _op_graph(planned, case.workload, case.configuration)


@lru_cache(maxsize=256)
def _op_graph(planned: Plan, workload: Workload, configuration: Configuration) -> OpGraph:
    """One for all GPUs whose plan is the same."""
    parts, tape = _parts(planned, configuration), Tape()
    with tape.times(workload.accumulate):
        if configuration.cuda_graphs:
            _batch_into_graph(tape, planned)
        saved = _forward(tape, planned, parts)
        if workload.trains:
            with tape.phase("backward"):
                _backward(tape, planned, parts, saved, configuration)
    if workload.trains:
        with tape.phase("backward"), tape.times(workload.accumulate - 1):
            _accumulate(tape, planned)
    if workload.pass_ == "train_step":
        with tape.phase("optimizer"):
            _update(tape, planned, _implementation(configuration))
    return tape.graph()


def _parts(planned: Plan, configuration: Configuration) -> _Parts:
    if planned.fused_step:
        return _FUSED_STEP
    if configuration.compile == "none":
        return _EAGER
    parts = _COMPILED
    checkpointing = configuration.checkpointing if planned.differentiated else "none"
    if not is_profiled(planned, checkpointing):
        forward, backward = _by_rules(partial(traced_block, checkpointing=checkpointing))
        parts = parts._replace(block=forward, block_backward=backward)
    if pads_head(planned):
        forward, backward = _by_rules(traced_readout)
        parts = parts._replace(readout=forward, readout_backward=backward)
    return parts


def fuses_by_rules(case: ModelCase, *, compute_capability: ComputeCapability = HOPPER) -> bool:
    """Whether a part's kernels follow from rules of what a compiler fuses, and were seen in no profile."""
    if case.configuration.compile == "none":
        return False
    parts = _parts(plan(case, compute_capability), case.configuration)
    return parts.block is not _COMPILED.block or parts.readout is not _COMPILED.readout


def _batch_into_graph(tape: Tape, planned: Plan) -> None:
    """Ids, and targets where the batch has them, to where the captured step reads them
    (`lab/levers/configured_step.py`)."""
    batch = tensor(INT, planned.batch, planned.seq)
    for _ in ("ids", "targets") if planned.has_targets else ("ids",):
        tape.call("copy_", (batch, batch), (batch,), bytes_read=batch.n_bytes)


def _forward(tape: Tape, planned: Plan, parts: _Parts) -> tuple[Any, Any]:
    """Gives what a block and the readout save."""
    parts.embedding(tape, planned)
    with tape.times(planned.shape.n_layers):
        of_block = parts.block(tape, planned)
    return of_block, parts.readout(tape, planned)


def _backward(
    tape: Tape, planned: Plan, parts: _Parts, saved: tuple[Any, Any], configuration: Configuration
) -> None:
    of_block, of_readout = saved
    if planned.loss_scaled:
        scale_loss(tape)
    parts.readout_backward(tape, planned, of_readout)
    if configuration.compile == "none":  # Else it is in the blocks' code.
        block.recomputed(tape, planned, configuration.checkpointing)
    with tape.times(planned.shape.n_layers):
        parts.block_backward(tape, planned, of_block)
    positions.backward(tape, planned)


def _implementation(configuration: Configuration) -> Implementation:
    over_lists = configuration.optimizer == "adamw-foreach"
    return (
        "adamw-foreach-captured"
        if over_lists and configuration.cuda_graphs
        else configuration.optimizer
    )


def _update(tape: Tape, planned: Plan, optimizer: Implementation) -> None:
    if planned.loss_scaled:
        unscale(tape, planned)
        if optimizer != "adamw-fused":
            read_whether_infinite(tape)
    adamw(tape, weights(planned), optimizer, loss_scaled=planned.loss_scaled)
    if planned.loss_scaled:
        update_scale(tape)


def _accumulate(tape: Tape, planned: Plan) -> None:
    """Adds each micro-batch but the first to every gradient and to the loss."""
    for weight in weights(planned):
        with tape.module(weight.module), tape.times(weight.n):
            tape.changed("add_", weight.tensor, weight.tensor)
    tape.pointwise("add", tensor(FLOAT), tensor(FLOAT))


# The purpose of an operator: the categories by which a trace's operators are told apart.

Category = Literal[
    "matmul",
    "attention",
    "softmax",
    "loss",
    "normalisation",
    "embedding",
    "optimizer",
    "reduction",
    "sort",
    "copy",
    "elementwise",
]
_CATEGORIES: dict[str, Category] = {
    "mm": "matmul",
    "addmm": "matmul",
    "bmm": "matmul",
    "_scaled_mm": "matmul",
    "_grouped_mm": "matmul",
    "_softmax": "softmax",
    "_safe_softmax": "softmax",
    "_softmax_backward_data": "softmax",
    "_log_softmax": "softmax",
    "_log_softmax_backward_data": "softmax",
    "nll_loss_forward": "loss",
    "nll_loss_backward": "loss",
    "_fused_rms_norm": "normalisation",
    "_fused_rms_norm_backward": "normalisation",
    "native_layer_norm": "normalisation",
    "native_layer_norm_backward": "normalisation",
    "embedding": "embedding",
    "embedding_dense_backward": "embedding",
    "index_add": "embedding",
    "index_select": "embedding",
    "scatter": "embedding",
    "searchsorted": "sort",
    "sort": "sort",
    "topk": "sort",
    "_fused_adamw_": "optimizer",
    "peakward.adamw": "optimizer",
    "peakward.adamw_8bit": "optimizer",
    "peakward.adamw_bf16": "optimizer",
    "peakward.add_layer_norm": "normalisation",
    "peakward.add_layer_norm_backward": "normalisation",
    "peakward.add_rms_norm": "normalisation",
    "peakward.add_rms_norm_backward": "normalisation",
    "peakward.cache_write": "copy",
    "peakward.cross_entropy_backward_over_logits": "loss",
    "peakward.cross_entropy_over_logits": "loss",
    "peakward.decode_attention": "attention",
    "peakward.flash_attention": "attention",
    "peakward.flash_attention_backward": "attention",
    "peakward.fp8_linear_both": "copy",
    "peakward.fp8_linear_delayed_both": "copy",
    "peakward.fp8_linear_delayed_rows": "copy",
    "peakward.fp8_linear_rows": "copy",
    "peakward.int4_matmul": "matmul",
    "peakward.int8_matmul": "matmul",
    "peakward.linear_cross_entropy_chunked": "loss",
    "peakward.linear_cross_entropy_chunked_backward": "loss",
    "peakward.linear_cross_entropy_recomputed": "loss",
    "peakward.linear_cross_entropy_recomputed_backward": "loss",
    "peakward.linear_cross_entropy_whole": "loss",
    "peakward.linear_cross_entropy_whole_backward": "loss",
    "amax": "reduction",
    "linalg_vector_norm": "reduction",
    "inductor.inner_reduction": "reduction",
    "inductor.mixed_reduction": "reduction",
    "inductor.outer_reduction": "reduction",
    "mean": "reduction",
    "sum": "reduction",
    "_to_copy": "copy",
    "cat": "copy",
    "clone": "copy",
    "constant_pad_nd": "copy",
    "full": "copy",
    "lift_fresh": "copy",
    "new_zeros": "copy",
    "ones": "copy",
    "ones_like": "copy",
    "scalar_tensor": "copy",
    "slice_backward": "copy",
    "stack": "copy",
}


def category(name: str) -> Category:
    """The category of an operator of `op_graph` by its name ("aten.mm"); all that are not named are
    elementwise.

    A compiler's kernel has the category of its loop. An optimiser's `_foreach_` operators are
    elementwise too: its phase says whose they are.
    """
    own = name.removeprefix("aten.")
    if own.startswith("_scaled_dot_product_"):
        return "attention"
    return _CATEGORIES.get(own, "elementwise")
