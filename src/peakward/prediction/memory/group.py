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
from peakward.prediction.memory.replay import Lived
from peakward.prediction.memory.step import timeline
from peakward.prediction.memory.timeline import Tensor
from peakward.prediction.parameters import embedding_parameters, head_parameters, n_parameters
from peakward.prediction.traffic import parameter_bytes
from peakward.records.case import ModelCase
from peakward.records.memory import MemoryPhase
from peakward.records.plan import Group

GATHERED_BLOCKS = 2


def tensors_of(case: ModelCase, group: Group | None) -> Lived:
    """Of one GPU of the group, or of one by itself.

    Raises:
        PeakwardError: a setting that is not covered.
    """
    alone = timeline(case)
    if group is None:
        return alone
    expect_shareable(case, group)
    return _Shared(alone, case, group)


class _Shared:
    """Tensors as one GPU of a group has them."""

    def __init__(self, alone: Lived, case: ModelCase, group: Group) -> None:
        self._alone, self._case, self._group = alone, case, group

    @property
    def phases(self) -> Sequence[MemoryPhase]:
        """Of each operator."""
        return self._alone.phases

    def tensors(self) -> list[Tensor]:
        """In the order in which they are made."""
        own = self._alone.tensors()
        if self._group.parallel == "ddp":
            found = [*self._buckets(), *own]
        else:
            found = [*self._gathered(), *map(self._sharded, own)]
        return sorted(found, key=lambda each: each.made)

    def _buckets(self) -> Iterator[Tensor]:
        if self._case.workload.trains:
            yield Tensor(model_bytes(self._case), "gradients", 0, len(self.phases) - 1)

    def _sharded(self, tensor: Tensor) -> Tensor:
        sharded = {"parameters", "optimizer_state"}
        if self._case.workload.accumulate == 1:
            sharded.add("gradients")
        of_update = tensor.category == "temporaries" and self.phases[tensor.made] == "optimizer"
        if tensor.category not in sharded and not of_update:
            return tensor
        return tensor._replace(n_bytes=-(-tensor.n_bytes // self._group.n_gpus))

    def _gathered(self) -> Iterator[Tensor]:
        shape, item = self._case.model, parameter_bytes(self._case)
        rest = embedding_parameters(shape) + head_parameters(shape)
        block = (n_parameters(shape) - rest) // shape.n_layers
        trains = self._case.workload.trains
        whole = (rest + (GATHERED_BLOCKS + trains) * block) * item
        at = 0
        for passes, run in itertools.groupby(
            self.phases, key=lambda phase: phase in ("forward", "backward")
        ):
            end = at + sum(1 for _ in run)
            if passes:
                yield Tensor(whole, "parameters", at, end - 1)
            at = end
