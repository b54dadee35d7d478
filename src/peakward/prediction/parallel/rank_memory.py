"""The memory of the rank of a layout that needs most, at the peak of its step.

Held to what torch's allocator gave out on two H200s and four H100s
(tests/accuracy/test_layouts_of_several_gpus.py).
"""

from collections.abc import Sequence

from peakward.prediction.memory.peak import CONTEXT_BYTES
from peakward.prediction.parallel.candidate import Candidate, Stage, spread, stages_of
from peakward.prediction.parallel.rank_costs import COMPUTE_BYTES, ITEM_BYTES, RankCosts
from peakward.prediction.parallel.schedule import n_under_way
from peakward.records.case import ModelCase
from peakward.records.layout import SHARDING
from peakward.records.layouts import RankMemory

GATHERED_BLOCKS = 2
"""The one that computes and the one that is gathered ahead of it."""


def memory(case: ModelCase, given: Candidate, costs: RankCosts) -> RankMemory:
    """The larger of the first and the last rank of the pipeline: the first has most
    micro-batches under way, the last has the logits."""
    layout = given.layout
    stages = stages_of(case.model.n_layers, layout.pp * layout.stages_per_rank)
    found = [
        _of_rank(case, given, costs, rank, stages[rank :: layout.pp])
        for rank in dict.fromkeys((0, layout.pp - 1))
    ]
    return max(found, key=lambda each: each.total_bytes)


def _of_rank(
    case: ModelCase, given: Candidate, costs: RankCosts, rank: int, own: Sequence[Stage]
) -> RankMemory:
    layout = given.layout
    item = ITEM_BYTES[case.configuration.precision]
    n_blocks, has_last = sum(each.n_blocks for each in own), any(each.is_last for each in own)
    p, rest = sum(each.parameters(costs) for each in own), sum(each.rest(costs) for each in own)
    held, summed, moments, held_whole = item * p, item * p, 2 * item * p, 0
    shard = spread(layout, costs, p, n_blocks) / layout.n_sharing
    # Micro-batches add to what is there. torch's DistributedDataParallel keeps its buckets between steps
    # (results/2026-11-28-h100-study-parallel: ddp and zero1, whatever the size of the buckets).
    in_buckets = layout.n_sharing > 1 and layout.data in ("ddp", "zero1")
    has_gradients = in_buckets or layout.n_micro_batches > 1
    if layout.data in SHARDING:
        together = costs.block_parameters * min(layout.blocks_together, n_blocks)
        blocks = GATHERED_BLOCKS * together + rest
        gathered = p if layout.data == "zero2" or layout.pp > 1 else min(p, blocks)
        is_whole = layout.n_micro_batches > 1 and not given.reduces_each
        waiting = p if is_whole else min(p, together + rest)
        held = int(item * shard) + COMPUTE_BYTES * gathered
        held_whole = COMPUTE_BYTES * waiting
        summed = int(item * shard) + held_whole
        moments = int(2 * item * shard)
    elif layout.data == "zero1":
        moments //= layout.n_sharing
    under_way = 1
    if layout.pp > 1:
        under_way = n_under_way(
            rank, layout.pp, layout.stages_per_rank, layout.n_micro_batches, layout.schedule
        )
    blocks_kept = n_blocks * under_way / layout.stages_per_rank
    casts = costs.casts_bytes * n_blocks
    logits = costs.logits_bytes if has_last else 0
    if given.recomputed == 1:
        activations = blocks_kept * costs.input_bytes + costs.kept_bytes
        casts = costs.casts_bytes
    else:
        activations = blocks_kept * costs.kept_bytes
    if not has_gradients:
        # None is there when the backward pass begins; when it ends, activations are gone.
        early = held_whole if layout.data in SHARDING else 0
        if early + activations + logits >= summed + costs.kept_bytes:
            summed = early
        else:
            activations, logits = costs.kept_bytes, 0
    return RankMemory(
        parameters_bytes=held,
        gradients_bytes=summed,
        optimizer_state_bytes=moments,
        activations_bytes=round(activations),
        logits_bytes=logits,
        temporaries_bytes=costs.other_bytes + casts,
        context_bytes=CONTEXT_BYTES,
    )
