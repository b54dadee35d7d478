"""A captured train step with another form of AdamW in the place of the one that it was captured with.

One capture, which takes seconds of a search, serves all forms: they differ in the operators of the last
phase, and in the memory that these hold.
"""

from collections.abc import Iterator, Sequence

import msgspec

from peakward.levers.optimizer import moment_sizes
from peakward.prediction.operators.tape import Tape, tensor
from peakward.prediction.operators.weights import Weight, adamw
from peakward.records.case import Optimizer
from peakward.records.op_graph import ITEM_BYTES, Call, Lifetime, ModuleCapture, Operator, OpGraph

OVER_LISTS: Optimizer = "adamw-foreach"
"""The form that every train step is captured with."""
_OF_EACH_PARAMETER = "aten._foreach_sqrt"
"""Called once for the parameters of a type, on moments that are alike."""


def with_optimizer(capture: ModuleCapture, optimizer: Optimizer) -> ModuleCapture:
    """The step as that form of AdamW ends it; a pass without an update as it is.

    Args:
        capture: with AdamW over lists.
    """
    if capture.pass_ != "train_step" or optimizer == capture.optimizer:
        return capture
    found = trained(capture.graph)
    tape = Tape()
    with tape.phase("optimizer"):
        adamw(tape, found, optimizer)
    # The update is last, so that the numbers of all other operators stay.
    before = tuple(each for each in capture.graph.operators if each.phase != "optimizer")
    update = tape.graph().operators
    compiled = capture.compiled
    if compiled is not None:
        calls = tuple(_calls(compiled.calls, len(before), update))
        compiled = msgspec.structs.replace(compiled, calls=calls)
    return msgspec.structs.replace(
        capture,
        optimizer=optimizer,
        graph=OpGraph(operators=(*before, *update)),
        lifetimes=tuple(_lifetimes(capture, found, optimizer)),
        compiled=compiled,
    )


def _calls(calls: Sequence[Call], n_before: int, update: Sequence[Operator]) -> Iterator[Call]:
    """The calls of a step with compiled parts. The first of the update stands for what all of it reads and
    writes, and so for the gradients that leave the parts."""
    replaced = [each for each in calls if each.operator >= n_before]
    yield from (each for each in calls if each.operator < n_before)
    reads = tuple(dict.fromkeys(seen for each in replaced for seen in each.reads))
    writes = tuple(dict.fromkeys(seen for each in replaced for seen in each.writes))
    for n, each in enumerate(update, n_before):
        for _ in range(each.count):
            yield Call(n, replaced[0].at, 0, reads, writes)
            reads, writes = (), ()


def trained(graph: OpGraph) -> tuple[Weight, ...]:
    """The parameters that an update over lists changes, each with how many are of its shape and type."""
    return tuple(
        Weight("", tensor(each.dtype, *each.shape), each.count)
        for operator in graph.operators
        if operator.name == _OF_EACH_PARAMETER and operator.phase == "optimizer"
        for each in operator.inputs
    )


def _lifetimes(
    capture: ModuleCapture, found: tuple[Weight, ...], optimizer: Optimizer
) -> Iterator[Lifetime]:
    """Lifetimes, each in its place, by whose number compiled parts know it: moments in fewer bits are
    smaller, codes and exponents are one, and what is left out has no bytes. The roots of the second moments
    are a list in an update over lists; a loop has one at a time, and its quotient; a kernel has none."""
    item_bytes = {each.tensor.n_bytes: ITEM_BYTES[each.tensor.dtype] for each in found}
    most = 2 * max(item_bytes, default=0) if optimizer == "adamw-loop" else 0
    at = -1
    for each in capture.lifetimes:
        n_bytes = each.n_bytes
        if each.held_for == "optimizer_state" and n_bytes in item_bytes:
            item = item_bytes[n_bytes]
            n_bytes = sum(moment_sizes(optimizer, n_bytes // item, item))
        elif each.held_for == "temporaries" and capture.phases[each.made] == "optimizer":
            # Of a list the first has what is left of it.
            n_bytes = most if n_bytes in item_bytes and each.made != at else 0
            at = each.made if n_bytes else at
        yield msgspec.structs.replace(each, n_bytes=n_bytes)
