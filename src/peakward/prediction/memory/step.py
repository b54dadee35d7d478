"""A case from its building to the end of a step, as a timeline of its tensors.

The functions of this room follow the decoder's and the levers', line by line, as
`prediction.operators` does: what Python's locals hold on to counts as much as what autograd keeps.
"""

import math
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import get_args

import msgspec

from peakward.levers import kv_cache
from peakward.prediction.memory import compiled_passes as compiled_step
from peakward.prediction.memory import passes
from peakward.prediction.memory.passes import Passes, SavedRun
from peakward.prediction.memory.timeline import Mark, Timeline, workspace
from peakward.prediction.operators import block, readout
from peakward.prediction.operators.compiled.block import RECOMPUTED, expect_covered
from peakward.prediction.operators.linear import Linear, layers
from peakward.prediction.operators.plan import OWN_KERNELS, Plan, plan
from peakward.prediction.operators.tape import FLOAT, of_type
from peakward.prediction.operators.weights import sizes, state_in_memory, update_in_memory, weights
from peakward.prediction.operators.writer import Value, Writer
from peakward.prediction.traffic import TOKEN_ID_BYTES
from peakward.records.case import Checkpointing, ModelCase, Optimizer, Precision, Workload
from peakward.records.errors import PeakwardError
from peakward.records.op_graph import ITEM_BYTES

# The sizes, types and attention kernel that a case fixes for its memory. Cases that are not covered are
# refused.

_OF_TORCH = ("cudnn", "flash", "efficient")
_WIDTH = 8
"""torch's fused kernels take a head_dim that divides by so many; torch pads for one of them, and else
takes the scores apart."""


def planned(case: ModelCase) -> Plan:
    """The plan of the case's operators, uncompiled, at the longest of its lengths.

    Raises:
        PeakwardError: a setting whose memory this room does not know.
    """
    _check(case)
    found = plan(_step_of_operators(case))
    if case.configuration.precision == "fp8" and case.configuration.compile != "none":
        expect_covered(case, found)  # The eager step keeps other tensors in fp8 than a compiler's.
    _expect("a kernel of attention", found.attention, "naive", *_OF_TORCH, *OWN_KERNELS)
    if found.attention in _OF_TORCH:
        rest = case.model.head_dim % _WIDTH
        _expect("remainder of head_dim by 8 for a fused kernel", rest, 0)
    return found


def _check(case: ModelCase) -> None:
    configuration = case.configuration
    _expect("device", case.device, "cuda")
    _expect("precision", configuration.precision, *get_args(Precision))
    _expect("compile", configuration.compile, "none", "default", "reduce-overhead")
    if configuration.precision == "fp8":
        _expect("compile of fp8", configuration.compile, "none", "default")
    _expect("optimizer", configuration.optimizer, *get_args(Optimizer))
    if case.model.n_experts > 1:
        _expect("compile of a mixture of experts", configuration.compile, "none")
    if configuration.compile != "none":
        # The blocks of a run are compiled one by one, and run again by Python.
        _expect("checkpointing of compiled blocks", configuration.checkpointing, *RECOMPUTED)


def _step_of_operators(case: ModelCase) -> ModelCase:
    """The case as `prediction.operators` has it: its plan is the same."""
    configuration, workload = case.configuration, case.workload
    varies = bool(workload.varying_seq_lens) and workload.padding == "none"
    longest = max(workload.varying_seq_lens) if varies else workload.seq_len
    return msgspec.structs.replace(
        case,
        workload=msgspec.structs.replace(
            workload, seq_len=longest, varying_seq_lens=(), padding="none"
        ),
        configuration=msgspec.structs.replace(
            configuration, compile="none", cuda_graphs=False, optimizer="adamw-fused"
        ),
    )


def _expect(setting: str, got: object, *covered: object) -> None:
    if got not in covered:
        raise PeakwardError(
            f"expected {setting} {' or '.join(map(str, covered))} for memory in closed form, "
            f"got {got}: measure the case instead, or change it"
        )


# The timeline: built, then stepped.

Span = tuple[Mark, Mark]
RESIDENT_STEPS = 8
"""Steps whose batches are on the device, one after another (`N_BATCHES` of the step)."""


def timeline(case: ModelCase) -> Timeline:
    """The tensors of a case from its building to the end of its second step, the first that finds the
    optimiser's state. A captured case ends with its capture.

    Raises:
        PeakwardError: a setting that is not covered.
    """
    plan, line, captured = planned(case), Timeline(), case.configuration.cuda_graphs
    _build(line, plan)
    _inputs(line, case)
    if plan.cached:
        _cache(line, plan, case.workload)
    if captured:
        _rehearse(line, plan, case)
    passes = _step(line, plan, case)
    if not captured:
        _step(line, plan, case, passes)
    return line


def _rehearse(line: Timeline, plan: Plan, case: ModelCase) -> None:
    """Adds the tensors that rehearsals leave: the batch that the graph reads, workspaces of the stream they
    ran on, and the optimiser's state. The capture itself holds as much as the rehearsals did meanwhile."""
    n_tokens = plan.tokens * case.workload.accumulate
    for _ in ("ids", "targets") if plan.has_targets else ("ids",):
        line.keep(line.op(n_tokens * TOKEN_ID_BYTES, category="inputs"))
    workspace(line)
    if case.workload.trains:
        workspace(line)
    if case.workload.pass_ == "train_step":
        state_in_memory(line, plan, case.configuration.optimizer)


def _step(
    line: Timeline, plan: Plan, case: ModelCase, before: Sequence[Span] = ()
) -> Sequence[Span]:
    """Adds a step, the first or the one behind it; gives where its micro-batches lie."""
    workload, configuration, first = case.workload, case.configuration, not before
    spans = []
    line.enter("forward")
    line.drop_gradients()
    if first:
        workspace(line)
    for i in range(min(workload.accumulate, 2)):  # A third would be as the second.
        line.enter("forward")
        start = line.mark()
        if before and not _is_tuned(plan, case):
            line.repeat(*before[i])
        else:
            _micro_batch(line, plan, case, first=first and i == 0)
        spans.append((start, line.mark()))
        if workload.trains:
            line.accumulate()
    if workload.pass_ == "train_step":
        line.enter("optimizer")
        if first and not configuration.cuda_graphs:
            state_in_memory(line, plan, configuration.optimizer)
        update_in_memory(line, plan, configuration.optimizer)
    return spans


def _is_tuned(plan: Plan, case: ModelCase) -> bool:
    """Whether kernels are tuned in the first step, so that it holds what no later one does."""
    return compiled_step.covers(case, plan)


def _micro_batch(line: Timeline, plan: Plan, case: ModelCase, *, first: bool) -> None:
    trains, configuration = case.workload.trains, case.configuration
    if compiled_step.covers(case, plan):
        # Before a capture rehearsals tune, when there is no state of the optimiser yet.
        tuning = first and not configuration.cuda_graphs
        if trains:
            compiled_step.forward_backward(
                line, plan, configuration.checkpointing, first=first, tuning=tuning
            )
        else:
            compiled_step.forward(line, plan, tuning=tuning)
    elif trains:
        _forward_backward(line, plan, configuration.checkpointing, first=first)
    else:
        _forward(line, plan)


def _build(line: Timeline, plan: Plan) -> None:
    """The parameters, then for each its values in fp32, one at a time; of quantised ones nothing is there
    before its turn (`lab/models/decoder.py`, `build`)."""
    if plan.quantised is not None:
        _build_quantised(line, plan)
        return
    line.keep(*line.ops(sizes(plan), category="parameters"))
    largest = max(math.prod(weight.tensor.shape) for weight in weights(plan))
    line.op(largest * ITEM_BYTES[FLOAT])


def _inputs(line: Timeline, case: ModelCase) -> None:
    """Ids and targets of every step, over whole cycles of lengths (`lab/data/feed.py`); of
    `prefill` and `decode` the ids, drawn at once, and where a step computes all tokens again, in the place
    of these for each step those before its own too."""
    workload = case.workload
    if workload.caches:
        n_tokens = RESIDENT_STEPS * int(workload.tokens_per_step)
        drawn = line.op(n_tokens * TOKEN_ID_BYTES, category="inputs")
        if kv_cache.recomputes(case):
            n_bytes = kv_cache.tokens_computed(case) * TOKEN_ID_BYTES
            line.keep(*(line.op(n_bytes, drawn, category="inputs") for _ in range(RESIDENT_STEPS)))
        else:
            line.keep(drawn)
        return
    lengths = workload.varying_seq_lens or (workload.seq_len,)
    n_steps = max(RESIDENT_STEPS, len(lengths)) // len(lengths) * len(lengths)
    for step in range(n_steps):
        padded = workload.padding == "to-seq-len"
        length = workload.seq_len if padded else lengths[step % len(lengths)]
        n_tokens = workload.accumulate * workload.batch_size * length
        for _ in ("ids", "targets"):
            line.keep(line.op(n_tokens * TOKEN_ID_BYTES, category="inputs"))


def _cache(line: Timeline, plan: Plan, workload: Workload) -> None:
    """Keys and values of each layer, and their scales; of `decode` filled, one sequence at a time in fp32
    (`lab/inference/cache.py`)."""
    kept = plan.narrow_cache
    rows = plan.shape.n_kv_heads * workload.seq_len
    n_bytes = plan.batch * rows * plan.shape.head_dim
    n_bytes *= ITEM_BYTES[plan.compute if kept is None else kept.dtype]
    scales = () if kept is None else (2 * plan.batch * rows * ITEM_BYTES[FLOAT],)
    for _ in range(plan.shape.n_layers):
        line.keep(*line.ops((n_bytes, n_bytes, *scales), category="cache"))
    if plan.from_cache:
        drawn = rows // workload.seq_len * (workload.seq_len - 1) * plan.shape.head_dim
        _draw(line, drawn, rounded=kept is not None)


def _draw(line: Timeline, n_elements: int, *, rounded: bool) -> None:
    """The elements that a sequence's keys or values are filled with; each divided by its scale and rounded
    before it is stored in a byte (`decode_attention.reference.quantized`)."""
    n_bytes = n_elements * ITEM_BYTES[FLOAT]
    drawn = line.op(n_bytes)
    if rounded:
        steps = line.op(n_bytes, drawn)
        line.use(drawn, line.op(n_bytes, steps))


def _forward(line: Timeline, plan: Plan) -> None:
    x, shared = passes.embedding_forward(line, plan)
    runs = Passes[SavedRun](line, plan.shape.n_layers)
    x = runs.forward(x, partial(passes.run_forward, line, plan, 1, "none"))
    _, _, logits = readout.logits(Writer(line=line), plan, Value(plan.hidden, x))
    line.use(x, logits.there, *shared)


def _forward_backward(
    line: Timeline, plan: Plan, checkpointing: Checkpointing, *, first: bool
) -> None:
    x, shared = passes.embedding_forward(line, plan)
    lengths = block.runs(plan.shape.n_layers, checkpointing)
    saved, on = [], Writer(line=line)
    for n_blocks, alike in groupby(lengths):
        runs = Passes[SavedRun](line, len(list(alike)))
        x = runs.forward(x, partial(passes.run_forward, line, plan, n_blocks, checkpointing))
        saved.append(runs)
    end = readout.loss(on, plan, Value(plan.hidden, x))
    line.use(x, *shared)
    line.enter("backward")
    into_logits = readout.loss_backward(on, plan, end)
    if first:
        workspace(line)
    gradient = readout.backward(on, plan, end, into_logits).there
    for runs in reversed(saved):
        gradient = runs.backward(gradient, partial(passes.run_backward, line, plan))
    passes.embedding_backward(line, plan, gradient)
    if plan.shape.positions == "rope" or checkpointing != "none":
        line.use(*line.saved(*shared))  # By the products, or to run blocks again.


# Building a model whose weights are quantised: each is drawn and quantised in its turn, and no other one is
# there densely beside it (`lab/models/decoder.py`, `lab/models/layers.py`).

CHUNK_ELEMENTS = 1 << 22
"""Quantised at once."""


def _build_quantised(line: Timeline, plan: Plan) -> None:
    """All parameters that stay as they are, then each parameter's values in fp32, one at a time."""
    quantised = {(each.module, each.weight): each for each in layers(plan)}
    every = weights(plan)
    for weight in every:
        if (weight.module, weight.tensor) not in quantised:
            for _ in range(weight.n):
                line.keep(line.op(weight.tensor.n_bytes, category="parameters"))
    outside = [each for each in every if each.n == 1]
    of_a_block = [each for each in every if each.n > 1]
    for weight in [*outside[:1], *plan.shape.n_layers * of_a_block, *outside[1:]]:
        drawn = line.op(of_type(weight.tensor, FLOAT).n_bytes)
        if (layer := quantised.get((weight.module, weight.tensor))) is not None:
            _quantise(line, layer, drawn)


def _quantise(line: Timeline, layer: Linear, drawn: int) -> None:
    stored, dense = layer.quantised, drawn
    assert stored is not None
    if layer.stored != FLOAT:
        dense = line.op(layer.weight.n_bytes, drawn)
    sizes = [each.n_bytes for each in stored.kept(layer.n_in, layer.n_out)]
    line.keep(*line.ops(sizes, dense, category="parameters"))
    rows = min(layer.n_out, max(1, CHUNK_ELEMENTS // layer.n_in))
    bytes_each = stored.chunk_bytes + (4 if layer.stored != FLOAT else 0)
    line.op(int(rows * layer.n_in * bytes_each), dense, drawn)
