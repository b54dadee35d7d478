"""A case from its building to the end of a step, as a timeline of its tensors.

The functions of this room follow the decoder's and the levers', line by line, as
`prediction.operators` does: what Python's locals hold on to counts as much as what autograd keeps.
"""

import math
from collections.abc import Sequence
from functools import partial
from itertools import groupby

from peakward.prediction.memory import embedding, optimizer, quantised, recomputed
from peakward.prediction.memory.compiled import step as compiled_step
from peakward.prediction.memory.plan import planned
from peakward.prediction.memory.recomputed import SavedRun
from peakward.prediction.memory.repeated import Passes
from peakward.prediction.memory.timeline import Mark, Timeline
from peakward.prediction.memory.workspace import workspace
from peakward.prediction.operators import readout, recomputation
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import FLOAT
from peakward.prediction.operators.weights import sizes, weights
from peakward.prediction.operators.writer import Value, Writer
from peakward.prediction.traffic import TOKEN_ID_BYTES
from peakward.records.case import Checkpointing, ModelCase, Workload
from peakward.records.op_graph import ITEM_BYTES

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
    _inputs(line, case.workload)
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
    for _ in ("ids",) if plan.cached else ("ids", "targets"):
        line.keep(line.op(n_tokens * TOKEN_ID_BYTES, category="inputs"))
    workspace(line)
    if case.workload.trains:
        workspace(line)
    if case.workload.pass_ == "train_step":
        optimizer.state(line, plan)


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
            optimizer.state(line, plan)
        optimizer.update(line, plan, configuration.optimizer)
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
            compiled_step.forward_backward(line, plan, first=first, tuning=tuning)
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
        quantised.build(line, plan)
        return
    line.keep(*line.ops(sizes(plan), category="parameters"))
    largest = max(math.prod(weight.tensor.shape) for weight in weights(plan))
    line.op(largest * ITEM_BYTES[FLOAT])


def _inputs(line: Timeline, workload: Workload) -> None:
    """Ids and targets of every step, over whole cycles of lengths (`lab/data/feed.py`); of
    a pass with a cache the ids, drawn at once."""
    if workload.caches:
        n_tokens = RESIDENT_STEPS * int(workload.tokens_per_step)
        line.keep(line.op(n_tokens * TOKEN_ID_BYTES, category="inputs"))
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
    """Keys and values of each layer; of `decode` filled, one sequence at a time in fp32
    (`lab/inference/cache.py`)."""
    sequence = plan.shape.n_kv_heads * workload.seq_len * plan.shape.head_dim
    for _ in range(2 * plan.shape.n_layers):
        n_bytes = plan.batch * sequence * ITEM_BYTES[plan.compute]
        line.keep(line.op(n_bytes, category="cache"))
    if plan.from_cache:
        drawn = sequence // workload.seq_len * (workload.seq_len - 1)
        line.op(drawn * ITEM_BYTES[FLOAT])


def _forward(line: Timeline, plan: Plan) -> None:
    x, shared = embedding.forward(line, plan)
    runs = Passes[SavedRun](line, plan.shape.n_layers)
    x = runs.forward(x, partial(recomputed.forward, line, plan, 1, "none"))
    _, _, logits = readout.logits(Writer(line=line), plan, Value(plan.hidden, x))
    line.use(x, logits.there, *shared)


def _forward_backward(
    line: Timeline, plan: Plan, checkpointing: Checkpointing, *, first: bool
) -> None:
    x, shared = embedding.forward(line, plan)
    lengths = recomputation.runs(plan.shape.n_layers, checkpointing)
    saved, on = [], Writer(line=line)
    for n_blocks, alike in groupby(lengths):
        runs = Passes[SavedRun](line, len(list(alike)))
        x = runs.forward(x, partial(recomputed.forward, line, plan, n_blocks, checkpointing))
        saved.append(runs)
    end = readout.loss(on, plan, Value(plan.hidden, x))
    line.use(x, *shared)
    line.enter("backward")
    into_logits = readout.loss_backward(on, plan, end)
    if first:
        workspace(line)
    gradient = readout.backward(on, plan, end, into_logits).there
    for runs in reversed(saved):
        gradient = runs.backward(gradient, partial(recomputed.backward, line, plan))
    embedding.backward(line, plan, gradient)
    if plan.shape.positions == "rope" or checkpointing != "none":
        line.use(*line.saved(*shared))  # By the products, or to run blocks again.
