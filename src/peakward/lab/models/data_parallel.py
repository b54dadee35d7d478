"""A model inside torch's DistributedDataParallel, whose hooks and buckets rest on its parameters.

Levers work in the module that it wraps, as far as the parameters and their gradients keep their types.
"""

import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from peakward.records.case import Configuration
from peakward.records.errors import PeakwardError
from peakward.records.plan import Absent

NOTE = (
    "The model is inside DistributedDataParallel, in a group of one process: levers work in the module that "
    "it wraps, and were searched without it. Lines of code go before the module is wrapped."
)


def wrapper_of(model: nn.Module) -> DistributedDataParallel | None:
    """The model itself, where it is a DistributedDataParallel."""
    return model if isinstance(model, DistributedDataParallel) else None


def inside(model: nn.Module) -> nn.Module:
    """The module that a DistributedDataParallel wraps; any other model itself."""
    wrapper = wrapper_of(model)
    return model if wrapper is None else wrapper.module


def not_predicted(model: nn.Module) -> tuple[Absent, ...]:
    """The figures that a prediction of the module inside lacks."""
    if wrapper_of(model) is None:
        return ()
    reason = (
        "the module is inside DistributedDataParallel: its step in one process is predicted, without "
        "buckets and collectives"
    )
    return (Absent(figure="communication", reason=reason),)


def expect_alone(model: nn.Module) -> None:
    """Refuses to search or to prove where the model's steps are not of this process and this module alone.

    Raises:
        PeakwardError: it is inside a DistributedDataParallel of several processes, or of what torch.compile
            made of a module, which would compile every lever once more.
    """
    wrapper = wrapper_of(model)
    if wrapper is None:
        return
    n = torch.distributed.get_world_size(wrapper.process_group)
    if n > 1:
        raise PeakwardError(
            f"expected a DistributedDataParallel of one process, got one of {n}, whose collectives would "
            "wait for the other processes: search on the module before it is wrapped, in one process, and "
            "give every process the study with `pw.apply`, without a batch"
        )
    if isinstance(wrapper.module, torch._dynamo.eval_frame.OptimizedModule):
        raise PeakwardError(
            "expected a module that is compiled in place inside DistributedDataParallel, got one that "
            "torch.compile wrapped: call `.compile()` on it, or on each of its blocks"
        )


def beneath(configuration: Configuration, base: Configuration) -> str | None:
    """Why the configuration cannot be applied to the module in a DistributedDataParallel, or None."""
    kind = configuration.precision
    if kind == "bf16" != base.precision:
        return (
            "casts parameters, for whose type DistributedDataParallel made its buckets: take bf16-mixed, or "
            "cast the module before it is wrapped"
        )
    if kind == "fp8" != base.precision:
        return (
            "chooses layers by their times in each process, and the processes of a DistributedDataParallel "
            "must compute alike: take bf16-mixed"
        )
    if configuration.cuda_graphs:
        return (
            "captures the whole step, in which DistributedDataParallel counts its buckets on the host: "
            "take compile"
        )
    return None
