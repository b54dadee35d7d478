"""The peak memory of a case, without torch, a GPU, or the model."""

from functools import lru_cache

import msgspec

from peakward.levers.weights import QUANTISED
from peakward.prediction.communication.step import model_bytes
from peakward.prediction.memory.compiled import step as compiled_step
from peakward.prediction.memory.group import lifetimes_of
from peakward.prediction.memory.plan import planned
from peakward.prediction.memory.replay import Replay, Replays
from peakward.records.case import ModelCase
from peakward.records.memory import MemoryPrediction
from peakward.records.plan import DeviceGroup

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
    that. No group (`memory.group`) was measured.

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
    copies = {"train_step": 4, "forward_backward": 2}.get(case.workload.pass_, 1)
    n_shards = 1 if group is None or group.parallel == "ddp" else group.n_gpus
    return copies * model_bytes(case) // n_shards


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
