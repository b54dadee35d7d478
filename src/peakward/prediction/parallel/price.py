"""One layout priced: the time of a step on its slowest rank, and what that rank sends.

The engine is the one of `lab/parallel`. It decides what is counted: `fully_shard` gathers in 16 bits
and keeps shards in the parameters' own type; DistributedDataParallel reduces gradients in theirs; in a
pipeline sharded gradients are reduced after the last backward pass, with nothing beside it (torch 2.11,
`perform_reduce_grad`), and a backward pass leaves its parameters gathered for the next forward pass.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from peakward.prediction.parallel.collectives import LOST_BESIDE, Group, Transfer, collective, group
from peakward.prediction.parallel.rank_costs import COMPUTE_BYTES, ITEM_BYTES, RankCosts
from peakward.prediction.parallel.schedule import (
    StageSeconds,
    Work,
    buckets,
    data_pass,
    pipeline_s,
)
from peakward.records.case import ModelCase
from peakward.records.layout import SHARDING, Collective, Layout
from peakward.records.layouts import Interconnect, LayoutBound, MeshAxis, Traffic

MIB = 2**20
DDP_BUCKET_BYTES, OVERLAPPED_BYTES = 100 * MIB, 32 * MIB
"""The choices of `lab/parallel/data.py`, where a layout states none."""


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


PARTS: tuple[LayoutBound, ...] = ("compute", "data", "tensor", "context", "pipeline", "update")


class Priced(NamedTuple):
    """The parts of a step, which add up to it, in the order of `PARTS`."""

    compute_s: float
    data_s: float
    tensor_s: float
    context_s: float
    pipeline_s: float
    update_s: float
    traffic: tuple[Traffic, ...]

    @property
    def step_s(self) -> float:
        """All of it."""
        return sum(self[:6])

    @property
    def bound(self) -> LayoutBound:
        """The largest part."""
        return max(zip(self[:6], PARTS, strict=True))[1]


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


class _Sent:
    """The calls of a rank's step, added up by axis and collective."""

    def __init__(self) -> None:
        self._found: dict[tuple[MeshAxis, Collective], list[tuple[float, Transfer]]] = {}

    def add(self, axis: MeshAxis, kind: Collective, n_calls: float, one: Transfer) -> None:
        if n_calls and one.sent_bytes:
            self._found.setdefault((axis, kind), []).append((n_calls, one))

    def traffic(self) -> tuple[Traffic, ...]:
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


class _Links(NamedTuple):
    """The groups of one rank."""

    dp: Group
    """With the ranks of context parallelism, which share parameters too."""
    cp: Group
    tp: Group
    hop: Group
    """Two neighbouring stages: of a pipeline over several nodes the slowest, which are in two."""
    ends: Group
    """The first stage and the last."""
    all: Interconnect

    def over_dp(self, kind: Collective, n_bytes: float) -> Transfer:
        return collective(kind, n_bytes, self.dp, self.all)

    def over_cp(self, kind: Collective, n_bytes: float) -> Transfer:
        return collective(kind, n_bytes, self.cp, self.all)

    def over_tp(self, kind: Collective, n_bytes: float) -> Transfer:
        return collective(kind, n_bytes, self.tp, self.all)


def _links(layout: Layout, links: Interconnect) -> _Links:
    """The mesh is (pp, dp, cp, tp), the last with neighbouring ranks (`lab/parallel/ranks.py`)."""
    per_node, stride = links.gpus_per_node, layout.tp * layout.n_sharing
    return _Links(
        group(layout.n_sharing, layout.tp, per_node),
        group(layout.cp, layout.tp, per_node),
        group(layout.tp, 1, per_node),
        Group(2, 2 if stride * layout.pp <= per_node else 1),
        group(2, stride * max(1, layout.pp - 1), per_node),
        links,
    )


class _Step(NamedTuple):
    """The givens that all parts of a price are made from."""

    case: ModelCase
    given: Candidate
    costs: RankCosts
    over: _Links

    @property
    def layout(self) -> Layout:
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
        return float(self._n_tokens * self.case.model.vocab_size * COMPUTE_BYTES)

    @property
    def _n_tokens(self) -> int:
        return self.given.micro_batch_size * self.case.workload.seq_len // self.layout.cp

    def gather(self, n_parameters: int) -> Transfer:
        """One gathering of a part's parameters, by `fully_shard`."""
        return self.over.over_dp("all-gather", COMPUTE_BYTES * n_parameters)

    def reduce(self, n_parameters: int) -> Transfer:
        """One reduction of a part's gradients, by `fully_shard`."""
        return self.over.over_dp("reduce-scatter", self.given.reduce_bytes * n_parameters)


class _Passes(NamedTuple):
    """The passes of one micro-batch through one stage."""

    compute: StageSeconds
    """Without any collective."""
    tensor: StageSeconds
    """Waiting for sums of the tensor axis."""
    context: StageSeconds
    """Waiting for keys and values."""
    data: StageSeconds
    """Waiting for, or slowed by, collectives of the data axis, before the last micro-batch."""
    reduced_s: float
    """The time that reducing the gradients adds to the last backward pass."""

    @property
    def total(self) -> StageSeconds:
        return StageSeconds(*(sum(each) for each in zip(*self[:4], strict=True)))


def price(case: ModelCase, given: Candidate, costs: RankCosts, links: Interconnect) -> Priced:
    """The time of a step.

    Args:
        costs: of a micro-batch, on a rank of the layout's tensor axis.
    """
    layout, m = given.layout, given.layout.n_micro_batches
    over, sent = _links(layout, links), _Sent()
    step = _Step(case, given, costs, over)
    stages = stages_of(case.model.n_layers, layout.pp * layout.stages_per_rank)
    passes = {each: _passes(step, each) for each in dict.fromkeys(stages)}
    by_rank = [stages[rank :: layout.pp] for rank in range(layout.pp)]

    def busy_s(own: Sequence[Stage]) -> float:
        return sum(sum(passes[each].total) for each in own)

    slowest = max(by_rank, key=busy_s)
    compute_s = m * sum(sum(passes[each].compute) for each in slowest)
    tensor_s = m * sum(sum(passes[each].tensor) for each in slowest)
    context_s = m * sum(sum(passes[each].context) for each in slowest)
    data_s = m * sum(sum(passes[each].data) for each in slowest)
    waited_s = 0.0
    if layout.pp > 1:
        act = collective("point-to-point", step.activation_bytes, over.hop, links)
        seconds = tuple(passes[each].total for each in stages)
        whole_s = pipeline_s(seconds, layout.pp, m, layout.schedule, act.time_s)
        waited_s = whole_s - (compute_s + tensor_s + context_s + data_s)
        # Forward and back, of every stage but the ends'.
        sent.add("pp", "point-to-point", 2 * m * layout.stages_per_rank, act)
        if case.model.tied_head:
            n_bytes = step.item_bytes * costs.embedding_parameters
            tie = collective("all-reduce", n_bytes, over.ends, links)
            sent.add("pp", "all-reduce", 1, tie)
            waited_s += tie.time_s
    data_s += max(sum(passes[each].reduced_s for each in own) for own in by_rank)
    parameters = max(sum(each.parameters(costs) for each in own) for own in by_rank)
    update_s = costs.update_s * parameters
    if layout.data in (*SHARDING, "zero1"):
        update_s /= layout.n_sharing
    if layout.data == "zero1" and layout.n_sharing > 1:
        whole = over.over_dp("all-gather", step.item_bytes * parameters)
        sent.add("dp", "all-gather", 1, whole)
        data_s += whole.time_s
    _add_tensor(sent, step, slowest)
    _add_context(sent, step, slowest)
    _add_data(sent, step, slowest)
    traffic = sent.traffic()
    if layout.data in SHARDING:
        data_s += _copies_s(step, parameters)
    if layout.data in SHARDING and not layout.captured:
        n_blocks = m * sum(each.n_blocks for each in slowest)
        n_calls = sum(each.n_calls for each in traffic if each.axis == "dp")
        host_s = n_blocks * given.host.block_s + n_calls * given.host.call_s
        data_s += max(0.0, host_s - (compute_s + data_s + tensor_s + context_s + waited_s))
    return Priced(compute_s, data_s, tensor_s, context_s, waited_s, update_s, traffic)


def _passes(step: _Step, stage: Stage) -> _Passes:
    _case, given, costs, over = step
    layout, again = given.layout, given.recomputed
    sum_s = over.over_tp("all-reduce", step.activation_bytes).time_s
    logits_s = over.over_tp("all-gather", step.logits_bytes).time_s
    block = costs.block
    compute = StageSeconds(
        stage.n_blocks * block.forward_s
        + stage.is_first * costs.embedding.forward_s
        + stage.is_last * costs.readout.forward_s,
        stage.n_blocks * (block.backward_s + again * block.forward_s)
        + stage.is_first * costs.embedding.backward_s
        + stage.is_last * costs.readout.backward_s,
    )
    tensor = StageSeconds(
        (2 * stage.n_blocks + stage.is_first) * sum_s + stage.is_last * logits_s,
        (2 * (1 + again) * stage.n_blocks + stage.is_last) * sum_s,
    )
    kv = _context_s(step)
    context = StageSeconds(*(stage.n_blocks * each for each in kv))
    if layout.n_sharing == 1:
        return _Passes(compute, tensor, context, StageSeconds(0.0, 0.0), 0.0)
    forward_s = block.forward_s + 2 * sum_s + kv.forward_s
    backward_s = block.backward_s + again * block.forward_s + 2 * (1 + again) * sum_s
    backward_s += kv.backward_s
    gather_s, rest_gather_s, reduce_s, rest_reduce_s = _collectives_s(step, stage)
    into = Work(costs.embedding.forward_s if stage.is_first else 0.0, rest_gather_s)
    ahead = [into, *[Work(forward_s, gather_s)] * stage.n_blocks]
    ahead.append(Work(costs.readout.forward_s + logits_s if stage.is_last else 0.0))
    gathers_again = gather_s if layout.data == "fsdp" else 0.0
    out = Work(costs.readout.backward_s + sum_s if stage.is_last else 0.0)
    back = [out, *[Work(backward_s, gathers_again)] * stage.n_blocks]
    back.append(Work(costs.embedding.backward_s if stage.is_first else 0.0))
    ahead_s = data_pass(ahead, LOST_BESIDE, is_backward=False)[1]
    back_s = data_pass(back, LOST_BESIDE, is_backward=True)[1]
    if layout.pp > 1 and layout.data in SHARDING:
        # The pass before has left them gathered; the first one's wait is told once.
        tail_s = stage.n_blocks * reduce_s + rest_reduce_s
        return _Passes(compute, tensor, context, StageSeconds(0.0, back_s), ahead_s + tail_s)
    blocks = [each._replace(reduce_s=reduce_s) for each in back[1:-1]]
    last = [out, *blocks, back[-1]._replace(reduce_s=rest_reduce_s)]
    if layout.data not in SHARDING:
        sizes = [0, *[costs.block_parameters] * stage.n_blocks, stage.rest(costs)]
        last = buckets(last, [step.item_bytes * each for each in sizes], _bucket_bytes(layout))
    reduced_s = data_pass(last, LOST_BESIDE, is_backward=True)[1] - back_s
    if given.reduces_each:
        return _Passes(compute, tensor, context, StageSeconds(ahead_s, back_s + reduced_s), 0.0)
    return _Passes(compute, tensor, context, StageSeconds(ahead_s, back_s), reduced_s)


def _bucket_bytes(layout: Layout) -> float:
    if layout.bucket_mb is not None:
        return layout.bucket_mb * MIB
    return OVERLAPPED_BYTES if layout.data == "overlapped" else DDP_BUCKET_BYTES


def _collectives_s(step: _Step, stage: Stage) -> tuple[float, float, float, float]:
    """Seconds on the data axis: a block's gathering, the rest's, a block's reduction, the rest's. Buckets
    are reduced at the rate of a whole one."""
    block, rest = step.costs.block_parameters, stage.rest(step.costs)
    if step.layout.data in SHARDING:
        gathers, sums = ([one(block), one(rest)] for one in (step.gather, step.reduce))
        return gathers[0].time_s, gathers[1].time_s, sums[0].time_s, sums[1].time_s
    bucket = max(1.0, _bucket_bytes(step.layout))
    of_byte_s = step.over.over_dp("all-reduce", bucket).time_s / bucket
    return 0.0, 0.0, of_byte_s * step.item_bytes * block, of_byte_s * step.item_bytes * rest


def _add_tensor(sent: _Sent, step: _Step, own: Sequence[Stage]) -> None:
    m, over = step.layout.n_micro_batches, step.over
    per_block = 4 + 2 * step.given.recomputed
    n_sums = sum(per_block * each.n_blocks + each.is_first + each.is_last for each in own)
    sent.add("tp", "all-reduce", m * n_sums, over.over_tp("all-reduce", step.activation_bytes))
    n_last = sum(each.is_last for each in own)
    sent.add("tp", "all-gather", m * n_last, over.over_tp("all-gather", step.logits_bytes))


def _turns(layout: Layout, reduces_each: bool) -> tuple[int, int]:
    """How often `fully_shard` gathers a block's parameters in a step, and reduces its gradients."""
    m, resharded = layout.n_micro_batches, layout.data == "fsdp"
    sums = m if reduces_each else 1
    if layout.pp > 1:
        return (m + 1 if resharded else 1), sums
    return (2 * m if resharded else m), sums


def _copies_s(step: _Step, parameters: int) -> float:
    """Copies of `fully_shard` beside the collectives: a rank's shard is cast into its place of what is
    gathered, and what came is copied to where the parameters lie; gradients are copied into the order of the
    ranks, and what came is cast to the type of the shard. One rank alone sends its gradients to itself."""
    gathers, sums = _turns(step.layout, step.given.reduces_each)
    shard, dp, added = step.item_bytes, step.layout.n_sharing, step.given.reduce_bytes
    gathered = (shard + COMPUTE_BYTES) / dp + 2 * COMPUTE_BYTES
    reduced = COMPUTE_BYTES + added + (added + shard) / dp + (2 * added if dp == 1 else 0)
    return step.costs.moved_s * parameters * (gathers * gathered + sums * reduced)


def _context_s(step: _Step) -> StageSeconds:
    """A block's waits for keys and values, which nothing hides: they are gathered before attention, in the
    backward pass too, as local ones are kept, and the sums of their gradients go back to where they are from
    (NVIDIA/TransformerEngine, AttnFuncWithCPAndKVAllGather)."""
    gather = step.over.over_cp("all-gather", step.costs.kv_bytes).time_s
    back = step.over.over_cp("reduce-scatter", step.costs.kv_bytes).time_s
    return StageSeconds(gather, (1 + step.given.recomputed) * gather + back)


def _add_context(sent: _Sent, step: _Step, own: Sequence[Stage]) -> None:
    n_blocks, n_bytes = sum(each.n_blocks for each in own), step.costs.kv_bytes
    n_turns = step.layout.n_micro_batches * n_blocks
    gather, back = (step.over.over_cp(kind, n_bytes) for kind in ("all-gather", "reduce-scatter"))
    sent.add("cp", "all-gather", (2 + step.given.recomputed) * n_turns, gather)
    sent.add("cp", "reduce-scatter", n_turns, back)


def _add_data(sent: _Sent, step: _Step, own: Sequence[Stage]) -> None:
    layout, block = step.layout, step.costs.block_parameters
    n_blocks, rest = sum(each.n_blocks for each in own), sum(each.rest(step.costs) for each in own)
    if layout.data not in SHARDING:
        n_bytes = step.item_bytes * (n_blocks * block + rest)
        n_calls = max(1, round(n_bytes / max(_bucket_bytes(layout), 1.0)))
        sent.add("dp", "all-reduce", n_calls, step.over.over_dp("all-reduce", n_bytes / n_calls))
        return
    gathers, sums = _turns(layout, step.given.reduces_each)
    n_rest = 1 if layout.pp > 1 else layout.n_micro_batches
    together = min(layout.blocks_together, n_blocks)
    n_groups, group = ceil(n_blocks / together), together * block
    sent.add("dp", "all-gather", n_groups * gathers, step.gather(group))
    sent.add("dp", "all-gather", n_rest, step.gather(rest))
    sent.add("dp", "reduce-scatter", sums * n_groups, step.reduce(group))
    sent.add("dp", "reduce-scatter", sums, step.reduce(rest))
