"""The subjects that ranks train: the reference decoder, or a user's module from its source."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import msgspec
import torch
from torch import nn

from peakward.lab.levers import precision
from peakward.lab.levers.module_levers import recompute
from peakward.lab.levers.module_step import calls_of, expect_fp32, place
from peakward.lab.models import decoder, module_source
from peakward.lab.parallel.step import Around, Batch, LossOf, decoder_loss
from peakward.levers import catalogue
from peakward.records.case import ModelCase, ModuleCase
from peakward.records.layout import SHARDING, Layout


class Subject(NamedTuple):
    """A module on a rank's device, in the state that all ranks begin with, and what it is trained on."""

    module: nn.Module
    batch: Callable[[int], Batch]
    """The batch of a rank of the data axis."""
    loss: LossOf
    around: Around = nullcontext
    """Makes the context of each forward pass."""


def subject(case: ModelCase | ModuleCase, layout: Layout, device: torch.device) -> Subject:
    """The case's own.

    Raises:
        PeakwardError: a source that cannot be built, parameters that are not in fp32, or no repeated blocks
            to be recomputed.
    """
    found = (
        _module(case, device) if isinstance(case, ModuleCase) else _decoder(case, layout, device)
    )
    recompute(found.module, case.configuration.checkpointing)
    if layout.data in SHARDING:  # They compute in 16 bits by a policy of their own.
        return found
    return found._replace(
        around=partial(precision.autocast, case.configuration.precision, case.device)
    )


def n_unused(subject: Subject, batch: Batch) -> int:
    """The trained parameters that the loss of a batch does not depend on, by a forward and a backward pass
    that leave gradients, buffers and random numbers as they were."""
    module, device = subject.module, batch[0].device
    buffers = [(each, each.detach().clone()) for each in module.buffers()]
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        with subject.around():
            loss = subject.loss(module, batch)
        loss.backward()
    found = sum(each.grad is None for each in module.parameters() if each.requires_grad)
    module.zero_grad(set_to_none=True)
    with torch.no_grad():
        for each, before in buffers:
            each.copy_(before)
    return found


def _decoder(case: ModelCase, layout: Layout, device: torch.device) -> Subject:
    configuration = case.configuration
    model = decoder.build(
        case.model,
        attention=catalogue.function("attention", configuration),
        loss=catalogue.function("loss", configuration),
        rotation=catalogue.function("rotation", configuration),
        gating=catalogue.function("gating", configuration),
        device=str(device),
        dtype=precision.parameter_dtype(configuration.precision),
        seed=case.workload.seed,
    )
    catalogue.apply_to_module(model, configuration, is_built=True)
    return Subject(model, partial(_tokens, case, layout, device), decoder_loss)


def _tokens(case: ModelCase, layout: Layout, device: torch.device, dp_rank: int) -> Batch:
    """Random tokens: the case's batch for each rank behind this one, so that every layout of as many ranks
    computes as much."""
    size = case.workload.batch_size * layout.tp * layout.pp
    generator = torch.Generator(device).manual_seed(case.workload.seed + 1 + dp_rank)
    drawn = torch.randint(
        case.model.vocab_size,
        (size, case.workload.seq_len + 1),
        generator=generator,
        device=device,
    )
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def _module(case: ModuleCase, device: torch.device) -> Subject:
    """Built as one process builds it. A batch that came with the module is that of every rank."""
    given = module_source.build(case, device=str(device))
    dtype = precision.parameter_dtype(case.configuration.precision)
    expect_fp32(given.module)
    calls = calls_of(case, given, dtype)
    place(given.module, str(device), dtype, keeps_buffers=given.keeps_buffers)
    given.module.train()

    def batch(dp_rank: int) -> Batch:
        workload = msgspec.structs.replace(case.workload, seed=case.workload.seed + 1 + dp_rank)
        return tuple(calls.batches(workload, str(device))[0][0])

    return Subject(given.module, batch, calls.loss)
