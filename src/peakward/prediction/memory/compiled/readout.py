"""Final norm, head and mean cross-entropy in compiled code: the logits' gradient is written over them."""

from typing import NamedTuple

from peakward.prediction.memory.compiled import linear, linear_loss
from peakward.prediction.memory.compiled.graph import Buffer, Graph
from peakward.prediction.memory.compiled.linear import SavedLinear
from peakward.prediction.memory.compiled.norms import SavedNorm
from peakward.prediction.memory.compiled.stream import stream
from peakward.prediction.memory.timeline import Timeline
from peakward.prediction.operators import readout
from peakward.prediction.operators.plan import Plan
from peakward.prediction.operators.tape import FLOAT, tensor


class SavedReadout(NamedTuple):
    """Buffers that the forward graph returns beside the loss."""

    norm: SavedNorm
    head: SavedLinear | None
    """None of a loss with the output layer in it."""
    rows: tuple[Buffer, ...]
    """The logits and of each row a maximum and a sum; of a loss with the output layer in it what it keeps."""

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All that is kept but the residual stream, which its caller has."""
        head = () if self.head is None else self.head.buffers
        return (self.norm.statistics, *head, *self.rows)


def logits(line: Timeline, plan: Plan, x: int, *, tuning: bool) -> int:
    """The residual stream → logits in the compute type."""
    graph, given = Graph(), Buffer(plan.hidden, x)
    _, normed = stream(plan).forward(graph, plan, given)
    _, made = linear.forward(graph, readout.head(plan), normed, plan.tokens, category="logits")
    graph.run(line, made, tuning=tuning)
    return made.place


def loss(line: Timeline, plan: Plan, x: int, *, tuning: bool) -> SavedReadout:
    """The residual stream → what the backward pass takes; the loss itself is a scalar."""
    graph, given = Graph(), Buffer(plan.hidden, x)
    norm, normed = stream(plan).forward(graph, plan, given)
    if plan.loss_has_head:
        saved = SavedReadout(norm, None, linear_loss.forward(graph, plan, normed))
        graph.run(line, *saved.buffers, tuning=tuning)
        return saved
    head, made = linear.forward(graph, readout.head(plan), normed, plan.tokens, category="logits")
    row = tensor(FLOAT, plan.tokens, 1)
    rows = graph.fused_several(made, writes=(row, row))
    saved = SavedReadout(norm, head, (made, *rows))
    graph.run(line, *saved.buffers, tuning=tuning)
    return saved


def backward(line: Timeline, plan: Plan, saved: SavedReadout, *, tuning: bool) -> int:
    """From the loss to the gradient of the residual stream; also of the parameters."""
    graph = Graph()
    gradient, head = _of_normed(graph, plan, saved)
    x, weight = stream(plan).last(graph, plan, saved.norm, gradient)
    line.saved(*(each.place for each in saved.buffers))
    graph.run(line, x, head, weight, tuning=tuning)
    line.gradients(*(each.place for each in (head, weight)))
    return x.place


def _of_normed(graph: Graph, plan: Plan, saved: SavedReadout) -> tuple[Buffer, Buffer]:
    """The gradients of the normalised stream, in the compute type, and of the weight."""
    if saved.head is None:
        return linear_loss.backward(graph, plan, saved.rows)
    like = tensor(plan.compute, plan.batch, plan.seq, plan.shape.vocab_size)
    made, *_ = saved.rows
    of_logits = graph.fused(*saved.rows, writes=like, over=made, category="logits")
    narrow = linear.of_weight(graph, saved.head, of_logits)
    gradient = linear.of_input(graph, saved.head, of_logits, plan.tokens)
    return gradient, linear.widened(graph, saved.head, narrow)
