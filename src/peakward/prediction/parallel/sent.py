"""The collectives of a rank's step: between which ranks, of how many bytes, how often."""

from collections.abc import Sequence
from math import ceil
from typing import Literal, NamedTuple

from peakward.prediction.parallel.candidate import Candidate, Stage
from peakward.prediction.parallel.collectives import Group, Transfer, collective, group
from peakward.prediction.parallel.rank_costs import COMPUTE_BYTES, ITEM_BYTES, RankCosts
from peakward.records.case import ModelCase
from peakward.records.layout import SHARDING, Collective, Layout
from peakward.records.layouts import Interconnect, MeshAxis, Traffic

MIB = 2**20
DDP_BUCKET_BYTES, OVERLAPPED_BYTES = 100 * MIB, 32 * MIB
"""The choices of `lab/parallel/data.py`, where a layout states none."""


RankGroup = Literal["dp", "same_experts", "cp", "ep", "tp"]


class Links(NamedTuple):
    """The groups of one rank."""

    dp: Group
    """With the ranks of context parallelism, which share parameters too."""
    same_experts: Group
    """Those of them that have the same experts."""
    cp: Group
    ep: Group
    tp: Group
    hop: Group
    """Two neighbouring stages: of a pipeline over several nodes the slowest, which are in two."""
    ends: Group
    """The first stage and the last."""
    all: Interconnect

    def call(self, over: RankGroup, kind: Collective, n_bytes: float) -> Transfer:
        """One collective of the ranks of one axis."""
        return collective(kind, n_bytes, getattr(self, over), self.all)


def links_of(layout: Layout, links: Interconnect) -> Links:
    """The mesh is (pp, dp, cp, tp), the last with neighbouring ranks (`lab/parallel/ranks.py`)."""
    per_node, stride = links.gpus_per_node, layout.tp * layout.n_sharing
    return Links(
        group(layout.n_sharing, layout.tp, per_node),
        group(layout.n_sharing // layout.ep, layout.tp * layout.ep, per_node),
        group(layout.cp, layout.tp, per_node),
        group(layout.ep, layout.tp, per_node),
        group(layout.tp, 1, per_node),
        Group(2, 2 if stride * layout.pp <= per_node else 1),
        group(2, stride * max(1, layout.pp - 1), per_node),
        links,
    )


class Step(NamedTuple):
    """The givens that all parts of a price are made from."""

    case: ModelCase
    given: Candidate
    costs: RankCosts
    over: Links

    @property
    def layout(self) -> Layout:
        """The candidate's."""
        return self.given.layout

    @property
    def item_bytes(self) -> int:
        """Bytes of a parameter, and of its gradient where it is not sharded."""
        return ITEM_BYTES[self.case.configuration.precision]

    @property
    def activation_bytes(self) -> float:
        """The activation of a micro-batch that goes from rank to rank, in 16 bits."""
        return float(self._n_tokens * self.case.model.d_model * COMPUTE_BYTES)

    @property
    def logits_bytes(self) -> float:
        """The logits of a micro-batch, of all ranks of the tensor axis together, in 16 bits."""
        return float(self._n_tokens * self.case.model.vocab_size * COMPUTE_BYTES)

    @property
    def _n_tokens(self) -> int:
        return self.given.micro_batch_size * self.case.workload.seq_len // self.layout.cp

    def gather(self, n_parameters: int, n_experts: int = 0) -> tuple[Transfer, Transfer]:
        """One gathering of a part's parameters by `fully_shard`, of which so many are experts'."""
        return self._both("all-gather", COMPUTE_BYTES, n_parameters, n_experts)

    def reduce(self, n_parameters: int, n_experts: int = 0) -> tuple[Transfer, Transfer]:
        """Likewise one reduction of its gradients."""
        return self._both("reduce-scatter", self.given.reduce_bytes, n_parameters, n_experts)

    def _both(
        self, kind: Collective, item: int, n_parameters: int, n_experts: int
    ) -> tuple[Transfer, Transfer]:
        rest = self.over.call("dp", kind, item * (n_parameters - n_experts))
        return rest, self.over.call("same_experts", kind, item * n_experts)


class Sent:
    """The calls of a rank's step, added up by axis and collective."""

    def __init__(self) -> None:
        self._found: dict[tuple[MeshAxis, Collective], list[tuple[float, Transfer]]] = {}

    def add(self, axis: MeshAxis, kind: Collective, n_calls: float, one: Transfer) -> None:
        """Adds calls like the one."""
        if n_calls and one.sent_bytes:
            self._found.setdefault((axis, kind), []).append((n_calls, one))

    def traffic(self) -> tuple[Traffic, ...]:
        """All that was added, in that order."""
        return tuple(
            Traffic(
                axis=axis,
                collective=kind,
                n_calls=round(sum(n for n, _ in calls)),
                sent_bytes=sum(n * one.sent_bytes for n, one in calls),
                time_s=sum(n * one.time_s for n, one in calls),
                algorithm=max(calls, key=lambda each: each[1].sent_bytes)[1].algorithm,
            )
            for (axis, kind), calls in self._found.items()
        )


def bucket_bytes(layout: Layout) -> float:
    """Gradients that are reduced together."""
    if layout.bucket_mb is not None:
        return layout.bucket_mb * MIB
    return OVERLAPPED_BYTES if layout.data == "overlapped" else DDP_BUCKET_BYTES


def turns(layout: Layout, reduces_each: bool) -> tuple[int, int]:
    """How often `fully_shard` gathers a block's parameters in a step, and reduces its gradients."""
    m, resharded = layout.n_micro_batches, layout.data == "fsdp"
    sums = m if reduces_each else 1
    if layout.pp > 1:
        return (m + 1 if resharded else 1), sums
    return (2 * m if resharded else m), sums


def add_all(sent: Sent, step: Step, own: Sequence[Stage]) -> None:
    """Adds those of every axis but the pipeline's, of a rank with these stages."""
    _add_tensor(sent, step, own)
    _add_context(sent, step, own)
    _add_experts(sent, step, own)
    _add_data(sent, step, own)


def _add_tensor(sent: Sent, step: Step, own: Sequence[Stage]) -> None:
    m, over = step.layout.n_micro_batches, step.over
    per_block = 4 + 2 * step.given.recomputed
    n_sums = sum(per_block * each.n_blocks + each.is_first + each.is_last for each in own)
    sent.add("tp", "all-reduce", m * n_sums, over.call("tp", "all-reduce", step.activation_bytes))
    n_last = sum(each.is_last for each in own)
    sent.add("tp", "all-gather", m * n_last, over.call("tp", "all-gather", step.logits_bytes))


def _add_context(sent: Sent, step: Step, own: Sequence[Stage]) -> None:
    n_blocks, n_bytes = sum(each.n_blocks for each in own), step.costs.kv_bytes
    n_turns = step.layout.n_micro_batches * n_blocks
    gather, back = (
        step.over.call("cp", kind, n_bytes) for kind in ("all-gather", "reduce-scatter")
    )
    sent.add("cp", "all-gather", (2 + step.given.recomputed) * n_turns, gather)
    sent.add("cp", "reduce-scatter", n_turns, back)


def _add_experts(sent: Sent, step: Step, own: Sequence[Stage]) -> None:
    n_turns = step.layout.n_micro_batches * sum(each.n_blocks for each in own)
    once = step.over.call("ep", "all-to-all", step.costs.routed_bytes)
    sent.add("ep", "all-to-all", (4 + 2 * step.given.recomputed) * n_turns, once)


def _add_data(sent: Sent, step: Step, own: Sequence[Stage]) -> None:
    layout, block = step.layout, step.costs.block_parameters
    n_blocks, rest = sum(each.n_blocks for each in own), sum(each.rest(step.costs) for each in own)
    experts = step.costs.expert_parameters
    if layout.data not in SHARDING:
        by_group: dict[RankGroup, int] = {
            "dp": n_blocks * (block - experts) + rest,
            "same_experts": n_blocks * experts,
        }
        for over, parameters in by_group.items():
            n_bytes = step.item_bytes * parameters
            n_calls = max(1, round(n_bytes / max(bucket_bytes(layout), 1.0)))
            sent.add(
                "dp", "all-reduce", n_calls, step.over.call(over, "all-reduce", n_bytes / n_calls)
            )
        return
    gathers, sums = turns(layout, step.given.reduces_each)
    n_rest = 1 if layout.pp > 1 else layout.n_micro_batches
    together = min(layout.blocks_together, n_blocks)
    n_groups, group = ceil(n_blocks / together), (together * block, together * experts)
    for n_calls, transfers in (
        (n_groups * gathers, step.gather(*group)),
        (n_rest, step.gather(rest)),
    ):
        for each in transfers:
            sent.add("dp", "all-gather", n_calls, each)
    for n_calls, transfers in ((sums * n_groups, step.reduce(*group)), (sums, step.reduce(rest))):
        for each in transfers:
            sent.add("dp", "reduce-scatter", n_calls, each)
