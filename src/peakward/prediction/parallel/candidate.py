"""A layout that is priced, and the stages that it cuts a model into."""

from functools import lru_cache
from typing import NamedTuple

from peakward.prediction.parallel.rank_costs import COMPUTE_BYTES, RankCosts
from peakward.records.layout import Layout


class HostSeconds(NamedTuple):
    """The host's time for a step of `fully_shard`, in calls of Python. A captured step has none of it."""

    block_s: float
    """For a block, forward and back."""
    call_s: float
    """For each gathering and reduction."""


HOST = HostSeconds(3.0e-3, 0.8e-3)
"""Measured on `xl` in compiled blocks on a host with two H200s: 280, 209 and 182 ms with each, two and four
blocks gathered at once, where arithmetic takes 99 (results/2026-11-27-h200-parallel-2). The first of them
took 206 to 308 ms in several runs; another host may need less."""


class Candidate(NamedTuple):
    """A layout of a case, and what else is chosen with it."""

    layout: Layout
    micro_batch_size: int
    recomputed: float
    """Share of a block's forward pass that its backward pass runs again: 1 with every-block."""
    reduce_bytes: int = COMPUTE_BYTES
    """Bytes of an element of a gradient while `fully_shard` adds it up."""
    reduces_each: bool = False
    """Whether shards are reduced after every micro-batch. Our engine reduces once, and holds gradients
    whole."""
    host: HostSeconds = HOST


class Stage(NamedTuple):
    """A rank's part of one stage."""

    n_blocks: int
    is_first: bool
    is_last: bool

    def parameters(self, costs: RankCosts) -> int:
        """On one rank, before the data axis splits them."""
        return self.n_blocks * costs.block_parameters + self.rest(costs)

    def rest(self, costs: RankCosts) -> int:
        """Parameters of the embedding and the readout."""
        both = self.is_first * costs.embedding_parameters + self.is_last * costs.readout_parameters
        return both - self.is_first * self.is_last * costs.tied_parameters


@lru_cache(maxsize=1024)
def stages_of(n_layers: int, n_stages: int) -> tuple[Stage, ...]:
    """Blocks that do not divide go to the first stages, as `lab/parallel/pipeline.py` cuts them."""
    return tuple(
        Stage(n_layers // n_stages + (at < n_layers % n_stages), at == 0, at == n_stages - 1)
        for at in range(n_stages)
    )


def spread(layout: Layout, costs: RankCosts, parameters: int, n_blocks: int) -> int:
    """The parameters that are spread over the ranks which share them: a rank's, with the experts that ranks
    of expert parallelism have beside its own."""
    return parameters + (layout.ep - 1) * n_blocks * costs.expert_parameters
