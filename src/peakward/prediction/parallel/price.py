"""One layout priced: the time of a step on its slowest rank, and what that rank sends.

The engine is the one of `lab/parallel`. It decides what is counted: `fully_shard` gathers in 16 bits
and keeps shards in the parameters' own type; DistributedDataParallel reduces gradients in theirs; in a
pipeline sharded gradients are reduced after the last backward pass, with nothing beside it (torch 2.11,
`perform_reduce_grad`), and a backward pass leaves its parameters gathered for the next forward pass.
"""

from collections.abc import Sequence
from typing import NamedTuple

from peakward.prediction.parallel.candidate import Candidate, Stage, spread, stages_of
from peakward.prediction.parallel.collectives import LOST_BESIDE, Transfer, collective
from peakward.prediction.parallel.rank_costs import COMPUTE_BYTES, RankCosts
from peakward.prediction.parallel.schedule import (
    StageSeconds,
    Work,
    buckets,
    data_pass,
    pipeline_s,
)
from peakward.prediction.parallel.sent import Sent, Step, add_all, bucket_bytes, links_of, turns
from peakward.records.case import ModelCase
from peakward.records.layout import SHARDING
from peakward.records.layouts import Interconnect, LayoutBound, Traffic

PARTS: tuple[LayoutBound, ...] = (
    "compute",
    "data",
    "tensor",
    "context",
    "expert",
    "pipeline",
    "update",
)


class Priced(NamedTuple):
    """The parts of a step, which add up to it, in the order of `PARTS`."""

    compute_s: float
    data_s: float
    tensor_s: float
    context_s: float
    expert_s: float
    pipeline_s: float
    update_s: float
    traffic: tuple[Traffic, ...]

    @property
    def step_s(self) -> float:
        """All of it."""
        return sum(self.parts)

    @property
    def parts(self) -> tuple[float, ...]:
        """Seconds in the order of `PARTS`."""
        waits = (self.data_s, self.tensor_s, self.context_s, self.expert_s, self.pipeline_s)
        return self.compute_s, *waits, self.update_s

    @property
    def bound(self) -> LayoutBound:
        """The largest part."""
        return max(zip(self.parts, PARTS, strict=True))[1]


class _Passes(NamedTuple):
    """The passes of one micro-batch through one stage."""

    compute: StageSeconds
    """Without any collective."""
    tensor: StageSeconds
    """Waiting for sums of the tensor axis."""
    context: StageSeconds
    """Waiting for keys and values."""
    expert: StageSeconds
    """Waiting for tokens on their way to experts and back."""
    data: StageSeconds
    """Waiting for, or slowed by, collectives of the data axis, before the last micro-batch."""
    reduced_s: float
    """The time that reducing the gradients adds to the last backward pass."""

    @property
    def total(self) -> StageSeconds:
        return StageSeconds(*(sum(each) for each in zip(*self[:5], strict=True)))


def price(case: ModelCase, given: Candidate, costs: RankCosts, links: Interconnect) -> Priced:
    """The time of a step.

    Args:
        costs: of a micro-batch, on a rank of the layout's tensor axis.
    """
    layout, m = given.layout, given.layout.n_micro_batches
    over, sent = links_of(layout, links), Sent()
    step = Step(case, given, costs, over)
    stages = stages_of(case.model.n_layers, layout.pp * layout.stages_per_rank)
    passes = {each: _passes(step, each) for each in dict.fromkeys(stages)}
    by_rank = [stages[rank :: layout.pp] for rank in range(layout.pp)]

    def busy_s(own: Sequence[Stage]) -> float:
        return sum(sum(passes[each].total) for each in own)

    slowest = max(by_rank, key=busy_s)
    compute_s = m * sum(sum(passes[each].compute) for each in slowest)
    tensor_s = m * sum(sum(passes[each].tensor) for each in slowest)
    context_s = m * sum(sum(passes[each].context) for each in slowest)
    expert_s = m * sum(sum(passes[each].expert) for each in slowest)
    data_s = m * sum(sum(passes[each].data) for each in slowest)
    waited_s = 0.0
    if layout.pp > 1:
        act = collective("point-to-point", step.activation_bytes, over.hop, links)
        seconds = tuple(passes[each].total for each in stages)
        whole_s = pipeline_s(seconds, layout.pp, m, layout.schedule, act.time_s)
        waited_s = whole_s - (compute_s + tensor_s + context_s + expert_s + data_s)
        # Forward and back, of every stage but the ends'.
        sent.add("pp", "point-to-point", 2 * m * layout.stages_per_rank, act)
        if case.model.tied_head:
            n_bytes = step.item_bytes * costs.embedding_parameters
            tie = collective("all-reduce", n_bytes, over.ends, links)
            sent.add("pp", "all-reduce", 1, tie)
            waited_s += tie.time_s
    data_s += max(sum(passes[each].reduced_s for each in own) for own in by_rank)
    parameters, n_blocks = max(
        (sum(each.parameters(costs) for each in own), sum(each.n_blocks for each in own))
        for own in by_rank
    )
    update_s = costs.update_s * parameters
    if layout.data in (*SHARDING, "zero1"):
        update_s = costs.update_s * spread(layout, costs, parameters, n_blocks) / layout.n_sharing
    if layout.data == "zero1" and layout.n_sharing > 1:
        whole = over.call("dp", "all-gather", step.item_bytes * parameters)
        sent.add("dp", "all-gather", 1, whole)
        data_s += whole.time_s
    add_all(sent, step, slowest)
    traffic = sent.traffic()
    if layout.data in SHARDING:
        data_s += _copies_s(step, parameters)
    if layout.data in SHARDING and not layout.captured:
        n_passes = m * sum(each.n_blocks for each in slowest)
        n_calls = sum(each.n_calls for each in traffic if each.axis == "dp")
        host_s = n_passes * given.host.block_s + n_calls * given.host.call_s
        on_device_s = compute_s + data_s + tensor_s + context_s + expert_s + waited_s
        data_s += max(0.0, host_s - on_device_s)
    return Priced(compute_s, data_s, tensor_s, context_s, expert_s, waited_s, update_s, traffic)


def _passes(step: Step, stage: Stage) -> _Passes:
    _case, given, costs, over = step
    layout, again = given.layout, given.recomputed
    sum_s = over.call("tp", "all-reduce", step.activation_bytes).time_s
    logits_s = over.call("tp", "all-gather", step.logits_bytes).time_s
    block = costs.captured_block if layout.captured else costs.block
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
    kv, routed = _context_s(step), _routed_s(step)
    context, expert = (
        StageSeconds(*(stage.n_blocks * each for each in waits)) for waits in (kv, routed)
    )
    if layout.n_sharing == 1:
        return _Passes(compute, tensor, context, expert, StageSeconds(0.0, 0.0), 0.0)
    forward_s = block.forward_s + 2 * sum_s + kv.forward_s + routed.forward_s
    backward_s = block.backward_s + again * block.forward_s + 2 * (1 + again) * sum_s
    backward_s += kv.backward_s + routed.backward_s
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
        return _Passes(
            compute, tensor, context, expert, StageSeconds(0.0, back_s), ahead_s + tail_s
        )
    blocks = [each._replace(reduce_s=reduce_s) for each in back[1:-1]]
    last = [out, *blocks, back[-1]._replace(reduce_s=rest_reduce_s)]
    if layout.data not in SHARDING:
        sizes = [0, *[costs.block_parameters] * stage.n_blocks, stage.rest(costs)]
        last = buckets(last, [step.item_bytes * each for each in sizes], bucket_bytes(layout))
    reduced_s = data_pass(last, LOST_BESIDE, is_backward=True)[1] - back_s
    if given.reduces_each:
        return _Passes(
            compute, tensor, context, expert, StageSeconds(ahead_s, back_s + reduced_s), 0.0
        )
    return _Passes(compute, tensor, context, expert, StageSeconds(ahead_s, back_s), reduced_s)


def _collectives_s(step: Step, stage: Stage) -> tuple[float, float, float, float]:
    """Seconds on the data axis: a block's gathering, the rest's, a block's reduction, the rest's. Buckets
    are reduced at the rate of a whole one."""
    costs, rest = step.costs, stage.rest(step.costs)
    block, experts = costs.block_parameters, costs.expert_parameters
    if step.layout.data in SHARDING:
        return (
            _both_s(step.gather(block, experts)),
            _both_s(step.gather(rest)),
            _both_s(step.reduce(block, experts)),
            _both_s(step.reduce(rest)),
        )
    bucket = max(1.0, bucket_bytes(step.layout))
    of_item = step.item_bytes / bucket
    over_all = of_item * step.over.call("dp", "all-reduce", bucket).time_s
    over_few = of_item * step.over.call("same_experts", "all-reduce", bucket).time_s
    return 0.0, 0.0, over_all * (block - experts) + over_few * experts, over_all * rest


def _both_s(transfers: tuple[Transfer, Transfer]) -> float:
    return transfers[0].time_s + transfers[1].time_s


def _copies_s(step: Step, parameters: int) -> float:
    """Copies of `fully_shard` beside the collectives: a rank's shard is cast into its place of what is
    gathered, and what came is copied to where the parameters lie; gradients are copied into the order of the
    ranks, and what came is cast to the type of the shard. One rank alone sends its gradients to itself."""
    gathers, sums = turns(step.layout, step.given.reduces_each)
    shard, dp, added = step.item_bytes, step.layout.n_sharing, step.given.reduce_bytes
    gathered = (shard + COMPUTE_BYTES) / dp + 2 * COMPUTE_BYTES
    reduced = COMPUTE_BYTES + added + (added + shard) / dp + (2 * added if dp == 1 else 0)
    return step.costs.moved_s * parameters * (gathers * gathered + sums * reduced)


def _context_s(step: Step) -> StageSeconds:
    """A block's waits for keys and values, which nothing hides: they are gathered before attention, in the
    backward pass too, as local ones are kept, and the sums of their gradients go back to where they are from
    (NVIDIA/TransformerEngine, AttnFuncWithCPAndKVAllGather)."""
    gather = step.over.call("cp", "all-gather", step.costs.kv_bytes).time_s
    back = step.over.call("cp", "reduce-scatter", step.costs.kv_bytes).time_s
    return StageSeconds(gather, (1 + step.given.recomputed) * gather + back)


def _routed_s(step: Step) -> StageSeconds:
    """A block's waits for tokens that go to their experts and come back, in both passes; nothing hides
    them."""
    once_s = step.over.call("ep", "all-to-all", step.costs.routed_bytes).time_s
    return StageSeconds(2 * once_s, 2 * (1 + step.given.recomputed) * once_s)
