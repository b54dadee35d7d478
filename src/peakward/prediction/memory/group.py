"""The tensors of one GPU of a group, from those of one by itself.

ddp holds the gradients again, in the buckets that it reduces (`gradient_as_bucket_view` is off unless
asked for). Under fsdp parameters, moments, and what the optimiser makes of them for a while, are a
share of their size. So are gradients, unless they are summed over micro-batches: they are reduced
once a step, and wait whole until then. Beside these lie, while a pass runs, the block that computes
and the one that is gathered ahead of it, in the backward pass one block's gradients too, and all
the time the tables and the head, which belong to no block.
"""

import itertools
from collections.abc import Iterator, Sequence

from peakward.prediction.communication.step import expect_shareable, model_bytes
from peakward.prediction.memory.step import timeline
from peakward.prediction.memory.timeline import Lifetimes, Tensor
from peakward.prediction.parameters import embedding_parameters, head_parameters, n_parameters
from peakward.prediction.traffic import parameter_bytes
from peakward.records.case import ModelCase
from peakward.records.memory import MemoryPhase
from peakward.records.plan import DeviceGroup

GATHERED_BLOCKS = 2


def lifetimes_of(case: ModelCase, group: DeviceGroup | None) -> Lifetimes:
    """Tensors of one GPU of the group, or of one by itself.

    Raises:
        PeakwardError: a setting that is not covered.
    """
    alone = timeline(case).lifetimes()
    if group is None:
        return alone
    expect_shareable(case, group)
    if group.parallel == "ddp":
        more = _buckets(case, alone.phases)
    else:
        more, alone = _gathered(case, alone.phases), _sharded(alone, case, group)
    found = sorted([*more, *alone.tensors()], key=lambda each: each.made)
    return Lifetimes.of(found, alone.phases)


def _buckets(case: ModelCase, phases: Sequence[MemoryPhase]) -> Iterator[Tensor]:
    if case.workload.trains:
        yield Tensor(model_bytes(case), "gradients", 0, len(phases) - 1)


def _sharded(alone: Lifetimes, case: ModelCase, group: DeviceGroup) -> Lifetimes:
    sharded = {"parameters", "optimizer_state"}
    if case.workload.accumulate == 1:
        sharded.add("gradients")
    sizes = [
        -(-each.n_bytes // group.n_gpus)
        if each.category in sharded
        or (each.category == "temporaries" and alone.phases[each.made] == "optimizer")
        else each.n_bytes
        for each in alone.tensors()
    ]
    return alone._replace(n_bytes=sizes)


def _gathered(case: ModelCase, phases: Sequence[MemoryPhase]) -> Iterator[Tensor]:
    shape, item = case.model, parameter_bytes(case)
    rest = embedding_parameters(shape) + head_parameters(shape)
    block = (n_parameters(shape) - rest) // shape.n_layers
    trains = case.workload.trains
    whole = (rest + (GATHERED_BLOCKS + trains) * block) * item
    at = 0
    for passes, run in itertools.groupby(
        phases, key=lambda phase: phase in ("forward", "backward")
    ):
        end = at + sum(1 for _ in run)
        if passes:
            yield Tensor(whole, "parameters", at, end - 1)
        at = end
