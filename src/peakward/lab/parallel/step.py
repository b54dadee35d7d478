"""A training step of this rank, as its layout has it."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from peakward.lab.levers.configured_step import CapturedStep, set_up
from peakward.lab.models.decoder import Decoder
from peakward.lab.parallel import pipeline, tensor
from peakward.lab.parallel.data import (
    Reducer,
    Spread,
    blocks_of,
    sharded_optimizer,
    spread,
    synchronise,
)
from peakward.records.errors import PeakwardError
from peakward.records.layout import Layout

Batch = tuple[Any, ...]
"""The tensors of this rank's batch, each with the batch in its first dimension. Ranks of one tensor or
pipeline axis are given the same batch."""
LossOf = Callable[[nn.Module, Batch], Tensor]
"""The mean loss of a batch, by a call of the module it is given."""
Around = Callable[[], AbstractContextManager[None]]
OptimizerOf = Callable[..., torch.optim.Optimizer]
"""A class of torch's, or what makes one, from parameters or groups of them."""


def decoder_loss(model: nn.Module, batch: Batch) -> Tensor:
    """The reference decoder's own."""
    return cast(Tensor, model(*batch))


def compile_blocks(module: nn.Module) -> None:
    """Compiles the forward pass of each repeated block, and of the reference decoder's readout; of a module
    without repeated blocks all of it.

    `forward` alone is compiled: the hooks by which `fully_shard` gathers parameters run around it. Inside
    of a DistributedDataParallel torch would cut each block's graph where a bucket ends (`optimize_ddp`),
    so that buckets can go while a whole model's graph runs; of a single block that only hinders fusion.
    """
    torch._dynamo.config.optimize_ddp = False
    parts = blocks_of(module)
    if isinstance(module, Decoder):
        parts.append(module.readout)
    elif not parts:
        parts = [module]
    for each in parts:
        each.forward = torch.compile(each.forward)


def captured(step: "ParallelStep") -> Callable[[Batch], Tensor]:
    """The step as one CUDA graph, captured at the first call and replayed on each batch after it.

    `fully_shard` takes the host some 5 ms a block, in calls of Python that a replay does not make. The
    optimiser must be capturable, and its rate is the one of the first call.
    """

    def run(batches: Sequence[Batch]) -> Tensor:
        return cast(Tensor, step.step(batches[0]))

    def rehearse(batches: Sequence[Batch]) -> None:
        step.gradients(batches[0])
        if not step.optimizer.state:
            set_up(step.optimizer)

    replayed = CapturedStep(run, rehearse)
    return lambda batch: replayed((batch,))


class ParallelStep:
    """Forward and backward passes, reduction and update of this rank.

    Args:
        module: on this rank's device, in the state that all ranks begin with. It is changed in place. The
            reference decoder takes every layout, any other module those without tensor and pipeline
            parallelism.
        layout: what the ranks do.
        mesh: of `ranks.mesh`.
        optimizer: called with groups of the trained parameters and `options`.
        loss: of a batch, where the module is not the reference decoder.
        compiled: compiles each repeated block by itself, so that its gradients are reduced while the block
            before it is computed.
        around: makes the context of each forward pass, such as autocast.
        types: `compute_dtype` and `reduce_dtype` of the strategies that shard.
    """

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        mesh: DeviceMesh,
        *,
        optimizer: OptimizerOf,
        options: dict[str, Any] | None = None,
        loss: LossOf = decoder_loss,
        compiled: bool = False,
        around: Around = nullcontext,
        **types: Any,
    ) -> None:
        if not isinstance(module, Decoder) and (layout.tp > 1 or layout.pp > 1):
            raise PeakwardError(
                f"expected the reference decoder for tensor or pipeline parallelism, got "
                f"{type(module).__name__}: take ddp, zero1, zero2 or fsdp"
            )
        self.layout, self._mesh, self._loss, self._around = layout, mesh, loss, around
        self._pipeline: pipeline.Pipeline | None = None
        if isinstance(module, Decoder) and layout.tp > 1:
            synchronise(module, mesh["tp"].get_group())
            tensor.split(module, mesh["tp"])
        # Not the module: a rank of a pipeline lets go of the other ranks' stages.
        self._shape = module.shape if isinstance(module, Decoder) else None
        if compiled:
            compile_blocks(module)
        self._spread: tuple[Spread, ...]
        if isinstance(module, Decoder) and layout.pp > 1:
            synchronise(module, mesh["pp"].get_group())
            self.stages = pipeline.cut(module, layout, mesh["pp"].get_local_rank())
            self._spread = tuple(spread(each, layout, mesh, **types) for each in self.stages)
            called = [each.module for each in self._spread]
            self._pipeline = pipeline.Pipeline(
                self.stages, called, layout, mesh["pp"], around=around
            )
            self.modules: Sequence[nn.Module] = self.stages
        else:
            self._spread = (spread(module, layout, mesh, **types),)
            self.modules = (module,)
        self.optimizer = self._optimizer(optimizer, options or {})

    def step(self, batch: Batch) -> Tensor | None:
        """A whole step. Returns this rank's mean loss, detached; None on a rank of a pipeline that has no
        loss."""
        loss = self.gradients(batch)
        self.optimizer.step()
        return loss

    def gradients(self, batch: Batch) -> Tensor | None:
        """The step without its update: afterwards parameters hold the gradients of the mean over all ranks.

        Raises:
            PeakwardError: a batch that the micro-batches do not divide.
        """
        for each in self.modules:
            each.zero_grad(set_to_none=True)
        self._expect_divisible(batch)
        if self._pipeline is not None:
            loss = self._pipeline.run(*batch)
            for spread_stage in self._spread:
                spread_stage.reducer.finish()
            return loss
        return self._accumulated(batch)

    def _accumulated(self, batch: Batch) -> Tensor:
        (module, reducer), n = self._spread[0], self.layout.n_micro_batches
        parts = [batch] if n == 1 else list(zip(*(each.chunk(n) for each in batch), strict=True))
        losses = []
        for at, part in enumerate(parts):
            with _paused(reducer) if at < n - 1 else nullcontext():
                with self._around():
                    loss = self._loss(module, part) / n
                loss.backward()
            losses.append(loss.detach())
        reducer.finish()
        return sum(losses[1:], losses[0])

    def _expect_divisible(self, batch: Batch) -> None:
        size, n = len(batch[0]), self.layout.n_micro_batches
        if size % n:
            raise PeakwardError(
                f"expected a batch that {n} micro-batches divide, got {size} sequences: change either"
            )

    def _optimizer(self, kind: OptimizerOf, options: dict[str, Any]) -> torch.optim.Optimizer:
        trained = [each for each in self.parameters().values() if each.requires_grad]
        if self.layout.data == "zero1" and self.layout.dp > 1:
            group = self._mesh["dp"].get_group()
            return sharded_optimizer(trained, kind, group=group, **options)
        return kind(_groups(trained), **options)

    def parameters(self) -> dict[str, nn.Parameter]:
        """Those of this rank, under the names of the whole model; a tied one once."""
        return dict(pair for each in self.modules for pair in each.named_parameters())

    def whole(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Parameters or gradients of this rank's `parameters`, put together from all ranks of the axes that
        split them, in the rows' order of one rank. A collective: all ranks call it."""
        found = {}
        for name, held in tensors.items():
            full = held.full_tensor() if isinstance(held, DTensor) else held
            order = None
            if self._shape is not None:
                order = tensor.whole_order(name, self._shape, self.layout.tp)
            found[name] = full if order is None else full[order.to(full.device)]
        return found

    def bytes_held(self) -> dict[str, int]:
        """Bytes of parameters, gradients and optimiser state on this rank between steps."""
        parameters = list(self.parameters().values())
        state = self.optimizer.state
        inner = getattr(self.optimizer, "optim", None)  # ZeRO keeps an optimiser of its share.
        if isinstance(inner, torch.optim.Optimizer):
            state = inner.state
        moments = [
            each for kept in state.values() for each in kept.values() if isinstance(each, Tensor)
        ]
        return {
            "parameters": _n_bytes(parameters),
            "gradients": _n_bytes([each.grad for each in parameters if each.grad is not None]),
            "optimizer_state": _n_bytes(moments),
        }


def _paused(reducer: Reducer) -> Any:
    return reducer.paused()


def _groups(parameters: Sequence[nn.Parameter]) -> list[dict[str, Any]]:
    """Parameters by the mesh that they are split over: an update over lists takes no two meshes at once."""
    found: dict[Any, list[nn.Parameter]] = {}
    for each in parameters:
        key = (each.device_mesh, each.placements) if isinstance(each, DTensor) else None
        found.setdefault(key, []).append(each)
    return [{"params": each} for each in found.values()] or [{"params": []}]


def _n_bytes(tensors: Sequence[Tensor]) -> int:
    local = (each.to_local() if isinstance(each, DTensor) else each for each in tensors)
    return sum(each.nbytes for each in local)


class NotFiniteError(PeakwardError):
    """A loss that is no number, or infinite."""


def expect_finite(loss: Tensor, step: int) -> None:
    """Waits for the loss of this rank's own batch.

    Raises:
        NotFiniteError: it is no number, or infinite. It is seen on the rank that computed it before the
            gradients of all are mixed: a step later every rank has it.
    """
    value = float(loss)
    if not math.isfinite(value):
        raise NotFiniteError(
            f"expected a finite loss, got {value} in step {step}: look at this rank's batch first"
        )
