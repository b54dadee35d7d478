"""The peak memory of a case or of a captured module, without torch, a GPU, or the model."""

import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache

import msgspec

from peakward.levers import optimizer
from peakward.levers.weights import QUANTISED
from peakward.prediction.communication import expect_shareable, model_bytes
from peakward.prediction.memory import compiled_passes as compiled_step
from peakward.prediction.memory.compiled_module import compiled_lifetimes
from peakward.prediction.memory.replay import Replay, Replays, replay
from peakward.prediction.memory.step import planned, timeline
from peakward.prediction.memory.timeline import WORKSPACE_BYTES, Lifetimes, Tensor
from peakward.prediction.parameters import embedding_parameters, head_parameters, n_parameters
from peakward.prediction.traffic import parameter_bytes
from peakward.records.case import ModelCase
from peakward.records.memory import MemoryPhase, MemoryPrediction
from peakward.records.op_graph import ModuleCapture
from peakward.records.plan import DeviceGroup

# The tensors of one GPU of a group, from those of one by itself.
#
# ddp holds the gradients again, in the buckets that it reduces (`gradient_as_bucket_view` is off unless
# asked for). Under fsdp parameters, moments, and what the optimiser makes of them for a while, are a
# share of their size. So are gradients, unless they are summed over micro-batches: they are reduced
# once a step, and wait whole until then. Beside these lie, while a pass runs, the block that computes
# and the one that is gathered ahead of it, in the backward pass one block's gradients too, and all
# the time the tables and the head, which belong to no block.

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


# The peak of a case.

CONTEXT_BYTES = 771 * 2**20
"""The most that an eager process had beside the allocator on an H200, of 169 cases that had 687 MiB
or more (torch 2.11, CUDA 13, measured 2026-11-21); compiled code and graphs add up to 100 MiB."""


def peak_memory(
    case: ModelCase, group: DeviceGroup | None = None, *, context_bytes: int = CONTEXT_BYTES
) -> MemoryPrediction:
    """The most memory that one GPU holds from the case's building on, by category, without its own limit.

    Every tensor that the step makes is followed from the operator that makes it to its last use,
    in its exact size, through a model of torch's allocator, and for compiled blocks through Inductor's
    choice of buffers. How far that is from measured peaks is in results/ (`benchmarks/peak_memory.py`).
    Other compiled code has the figures of the eager step: 72 compiled cases held 17% less to 8% more than
    that. No group was measured.

    Raises:
        PeakwardError: a setting that is not covered.
    """
    found = unlimited(case, group)
    return MemoryPrediction(
        case=case,
        phase=found.phase,
        peak=found.split,
        reserved_bytes=found.reserved_bytes if tells_reserved(case) else None,
        context_bytes=context_bytes,
        basis="step" if _is_itself(case) else "eager step",
    )


def tells_reserved(case: ModelCase) -> bool:
    """Whether what the allocator reserves is predicted: not of a CUDA graph, which has a pool of its own,
    nor of lengths that vary in compiled code, which then holds other buffers for each."""
    varies = case.configuration.compile != "none" and bool(case.workload.varying_seq_lens)
    return _is_itself(case) and not case.configuration.cuda_graphs and not varies


def _is_itself(case: ModelCase) -> bool:
    return case.configuration.compile == "none" or compiled_step.covers(case, planned(case))


def unlimited(case: ModelCase, group: DeviceGroup | None) -> Replay:
    """The memory that a step holds and reserves where nothing limits it.

    Raises:
        PeakwardError: a setting that is not covered.
    """
    return _unlimited(_alike(case), group)


def within(case: ModelCase, limit_bytes: int, group: DeviceGroup | None) -> Replay | None:
    """The memory that a step holds and reserves under a limit; None where it has to reserve more.

    Raises:
        PeakwardError: a setting that is not covered, unless parameters alone are above the limit.
    """
    if resident_bytes(case, group) > limit_bytes:
        return None
    return _replays(_alike(case), group).within(limit_bytes)


def resident_bytes(case: ModelCase, group: DeviceGroup | None) -> int:
    """Bytes that one GPU holds at a step's end at least: parameters, gradients and moments, which need no
    timeline to be summed."""
    if case.configuration.weights in QUANTISED:
        return 0
    held = (2 if case.workload.trains else 1) * model_bytes(case)
    if case.workload.pass_ == "train_step":
        n, each = n_parameters(case.model), parameter_bytes(case)
        held += 2 * sum(optimizer.moment_sizes(case.configuration.optimizer, n, each))
    n_shards = 1 if group is None or group.parallel == "ddp" else group.n_gpus
    return held // n_shards


@lru_cache(maxsize=256)
def _unlimited(case: ModelCase, group: DeviceGroup | None) -> Replay:
    return _replays(case, group).free()


@lru_cache(maxsize=64)
def _replays(case: ModelCase, group: DeviceGroup | None) -> Replays:
    """A plan asks for one case on several devices, whose limits differ. The tensors of 32 blocks take some
    6 ms and 0.6 MB, a replay of them 10 ms."""
    return Replays(lifetimes_of(case, group))


def _alike(case: ModelCase) -> ModelCase:
    """A case that holds the same: tf32 is how fp32 tensors are multiplied, both optimisers of one kernel have
    no temporaries, and compiled code whose tensors are not known has those of the eager step."""
    settings, same = case.configuration, {}
    if settings.precision == "tf32":
        same["precision"] = "fp32"
    if settings.optimizer == "adamw-triton":
        same["optimizer"] = "adamw-fused"
    if not _is_itself(case):
        same["compile"] = "none"
    settings = msgspec.structs.replace(settings, **same)
    return msgspec.structs.replace(case, configuration=settings, memory_limit_bytes=None)


# The peak memory of a captured module, tensor by tensor through the allocator.


def module_lifetimes(capture: ModuleCapture) -> Lifetimes:
    """A capture's tensors, and cuBLAS's workspaces, one for the thread of the forward pass and one for
    that of the backward pass. Of compiled parts they are those of the second step alone."""
    if capture.compiled is not None:
        return compiled_lifetimes(capture)
    end = len(capture.phases) - 1
    n_threads = 1 if capture.pass_ == "forward" else 2
    workspaces = [Tensor(WORKSPACE_BYTES, "workspace", 0, end)] * n_threads
    own = [
        Tensor(each.n_bytes, each.held_for, each.made, each.last)
        for each in capture.lifetimes
        if each.n_bytes
    ]
    return Lifetimes.of([*workspaces, *own], capture.phases)


def module_memory(capture: ModuleCapture) -> MemoryPrediction:
    """The most memory that the module's steps hold, with the context of an eager process on an H200."""
    found = replay(module_lifetimes(capture))
    return MemoryPrediction(
        case=capture.case,
        phase=found.phase,
        peak=found.split,
        reserved_bytes=found.reserved_bytes,
        context_bytes=CONTEXT_BYTES,
    )
