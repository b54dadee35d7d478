"""Ranks with batches of their own: how gradients, optimiser state and parameters are shared.

The engine is torch's: DistributedDataParallel, ZeroRedundancyOptimizer and `fully_shard`. Beside it stand
reducers that a hand-written loop would have. Each of them leaves the mean of all ranks' gradients.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from peakward.lab.models.given_module import repeated_blocks
from peakward.lab.parallel.pipeline import Stage
from peakward.records.layout import SHARDING, Layout

MIB = 2**20
DDP_BUCKET_MB = 100.0
"""Four times torch's. A block of `xl` has 82 MB of bf16 gradients, which are all there at once where it is
compiled: one reduction a block. The smaller first bucket of 1 MB is torch's own."""
OVERLAPPED_MB = 32.0
"""NCCL reaches nine tenths of its largest rate from some 30 MB on (records: 10 MB 180, 100 MB 314 of 353
GB/s on four H200)."""
FORWARD_PREFETCH = 1


class Reducer(Protocol):
    """A way to give every rank the mean gradients of all."""

    def finish(self) -> None:
        """Waits until every parameter holds its mean gradient. Called after the last backward pass."""

    def paused(self) -> AbstractContextManager[None]:
        """While it lasts, gradients are added up and not reduced."""


class Spread(NamedTuple):
    """A module that is called in place of the given one, and its reducer."""

    module: nn.Module
    reducer: Reducer


def synchronise(module: nn.Module, group: dist.ProcessGroup) -> None:
    """Gives every rank of the group the parameters, also the frozen ones, and buffers of its first."""
    with torch.no_grad():
        for each in [*module.parameters(), *module.buffers()]:
            held = each.detach()
            dist.broadcast(_local(held), group=group, group_src=0)


def spread(module: nn.Module, layout: Layout, mesh: DeviceMesh, **types: Any) -> Spread:
    """The module as the layout's data strategy has it, over the mesh's axis `dp`.

    Args:
        types: `compute_dtype` and `reduce_dtype` of the sharding strategies.
    """
    group = mesh["dp"].get_group()
    if layout.data in SHARDING:
        fully_sharded(
            module,
            mesh["dp"],
            reshard=layout.data == "fsdp",
            blocks=() if layout.wrap == "whole" else blocks_of(module),
            together=layout.blocks_together,
            **types,
        )
        return Spread(module, _OfSharded(cast(FSDPModule, module)))
    if layout.dp == 1:
        return Spread(module, _Nothing())
    if layout.data in ("ddp", "zero1"):
        # In a pipeline torch counts each micro-batch's gradients for the order of the buckets, and then
        # fails (13 parameters, 26 counted): only where it looks for unused ones it leaves the order.
        find_unused = layout.find_unused or layout.pp > 1
        wrapped = data_parallel(
            module, group=group, bucket_mb=layout.bucket_mb, find_unused=find_unused
        )
        return Spread(wrapped, _OfDdp(wrapped))
    synchronise(module, group)
    if layout.data == "overlapped":
        bucket_mb = OVERLAPPED_MB if layout.bucket_mb is None else layout.bucket_mb
        return Spread(module, Overlapped(module, group, bucket_mb=bucket_mb))
    return Spread(module, AfterBackward(module, group, flat=layout.data == "flat"))


# The three entries for a loop of one's own.


def data_parallel(
    module: nn.Module,
    *,
    group: dist.ProcessGroup | None = None,
    bucket_mb: float | None = None,
    find_unused: bool = False,
) -> DistributedDataParallel:
    """torch's DistributedDataParallel with gradients that are views of its buckets.

    Args:
        bucket_mb: gradients that are reduced together; 0 reduces each parameter alone as soon as its
            gradient is there.
        find_unused: looks after each forward pass for parameters that the loss does not depend on.
    """
    cap_mb = DDP_BUCKET_MB if bucket_mb is None else bucket_mb
    return DistributedDataParallel(
        module,
        process_group=group,
        bucket_cap_mb=max(
            cap_mb, 1 / MIB
        ),  # torch takes 0 for no limit, and 1 byte for one tensor.
        gradient_as_bucket_view=True,
        find_unused_parameters=find_unused,
    )


def sharded_optimizer(
    parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
    kind: Callable[..., torch.optim.Optimizer],
    *,
    group: dist.ProcessGroup | None = None,
    **options: Any,
) -> ZeroRedundancyOptimizer:
    """torch's ZeroRedundancyOptimizer (ZeRO-1, Rajbhandari et al. 2020): each rank updates whole parameters
    that add up to its share, holds their state alone, and sends them to the others.

    Args:
        parameters: those that are trained, or groups of them with options of their own.
        kind: the class of the optimiser.
        options: of every group.
    """
    groups = [each if isinstance(each, dict) else {"params": [each]} for each in list(parameters)]
    merged: list[Any] = groups
    if all(set(each) == {"params"} for each in groups):
        merged = [one for each in groups for one in each["params"]]
    maker = cast(type[torch.optim.Optimizer], kind)
    return ZeroRedundancyOptimizer(merged, optimizer_class=maker, process_group=group, **options)


def fully_sharded(
    module: nn.Module,
    mesh: DeviceMesh | None = None,
    *,
    compute_dtype: torch.dtype | None = None,
    reduce_dtype: torch.dtype | None = None,
    reshard: bool = True,
    blocks: Sequence[nn.Module] | None = None,
    together: int = 1,
) -> nn.Module:
    """torch's `fully_shard` on every repeated block and on the whole, in place: parameters, gradients and
    optimiser state are split over the ranks (ZeRO-3).

    All ranks begin with the first one's parameters and buffers.

    Args:
        mesh: one-dimensional; all ranks where it is None.
        compute_dtype: the type that parameters are gathered in; None is their own.
        reduce_dtype: the type that gradients are added up in; None is the type they have.
        reshard: whether a block's parameters are freed after its forward pass. Without it they are gathered
            once a step and stay whole until their backward pass has gone by (ZeRO-2).
        blocks: the parts that are gathered by themselves; None takes the repeated blocks, and none at all
            gathers everything at once.
        together: successive blocks that are gathered and reduced as one.
    """
    if mesh is None:
        mesh = _all_ranks(next(module.parameters()).device.type)
    synchronise(module, mesh.get_group())
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=reduce_dtype)
    found = blocks_of(module) if blocks is None else list(blocks)
    groups = [found[at : at + together] for at in range(0, len(found), together)]
    for each in groups:
        fully_shard(each, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    # What is in no block is used first and last, so torch keeps it whole between (None).
    fully_shard(
        module, mesh=mesh, mp_policy=policy, reshard_after_forward=None if reshard else False
    )
    firsts: list[Any] = [each[0] for each in groups]
    for at, first in enumerate(firsts):
        first.set_modules_to_forward_prefetch(firsts[at + 1 : at + 1 + FORWARD_PREFETCH])
    return module


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """The repeated blocks of a module, or of a stage of the reference decoder."""
    if isinstance(module, Stage):
        return list(module.blocks.values())
    return list(repeated_blocks(module) or ())


def _all_ranks(kind: str) -> DeviceMesh:
    return init_device_mesh(kind, (dist.get_world_size(),))


# Reducers.


class _Nothing:
    """One rank has its mean already."""

    def finish(self) -> None:
        """Does nothing."""

    def paused(self) -> AbstractContextManager[None]:
        """Changes nothing."""
        return nullcontext()


class _OfDdp:
    """DistributedDataParallel reduces in its own hooks."""

    def __init__(self, module: DistributedDataParallel) -> None:
        self._module = module

    def finish(self) -> None:
        """The backward pass has waited for its buckets."""

    def paused(self) -> AbstractContextManager[None]:
        """torch's `no_sync`."""
        return cast(AbstractContextManager[None], self._module.no_sync())


class _OfSharded:
    """`fully_shard` reduces in its own hooks."""

    def __init__(self, module: FSDPModule) -> None:
        self._module = module

    def finish(self) -> None:
        """The backward pass has waited for its shards."""

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Gradients stay whole on every rank until the last micro-batch."""
        self._module.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self._module.set_requires_gradient_sync(True)


class Overlapped:
    """Reduces gradients in place while the backward pass goes on.

    A gradient is ready once it is accumulated. Ready ones are sent together from `bucket_mb` on, as one
    call of the library and without a copy: DistributedDataParallel copies 4 GB of them for `xl` in bf16,
    2.4 ms of a step of 110 ms on an H100. All ranks must use the same parameters in the same order.
    """

    def __init__(self, module: nn.Module, group: dist.ProcessGroup, *, bucket_mb: float) -> None:
        self._group, self._bucket_bytes = group, bucket_mb * MIB
        self._n_ranks = dist.get_world_size(group)
        self._ready: list[Tensor] = []
        self._n_bytes = 0
        self._sent: list[tuple[Any, list[Tensor]]] = []
        self._is_paused = False
        for each in module.parameters():
            if each.requires_grad:
                each.register_post_accumulate_grad_hook(self._take)

    def _take(self, parameter: Tensor) -> None:
        if self._is_paused:
            return
        assert parameter.grad is not None
        gradient = _local(parameter.grad)
        self._ready.append(gradient)
        self._n_bytes += gradient.nbytes
        if self._n_bytes >= self._bucket_bytes:
            self._send()

    def _send(self) -> None:
        ready, self._ready, self._n_bytes = self._ready, [], 0
        for dtype in dict.fromkeys(each.dtype for each in ready):  # NCCL sends one type together.
            alike = [each for each in ready if each.dtype == dtype]
            self._sent.append((_mean_together(alike, self._group), alike))

    def finish(self) -> None:
        """Sends what is left and waits for all."""
        self._send()
        sent, self._sent = self._sent, []
        for works, gradients in sent:
            for work in works:
                work.wait()
            if not _averages(self._group):
                torch._foreach_div_(gradients, self._n_ranks)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Gradients are added up on each rank."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False


def _mean_together(gradients: list[Tensor], group: dist.ProcessGroup) -> list[Any]:
    """Begins to reduce them. With NCCL they go in one launch (ncclGroupStart), and it divides; gloo only
    adds up."""
    if not _averages(group):
        return [dist.all_reduce(each, group=group, async_op=True) for each in gradients]
    with dist.distributed_c10d._coalescing_manager(group, async_ops=True) as manager:
        for each in gradients:
            dist.all_reduce(each, op=dist.ReduceOp.AVG, group=group)
    return [manager]


def _averages(group: dist.ProcessGroup) -> bool:
    return dist.get_backend(group) == "nccl"


class AfterBackward:
    """The naive strategies: gradients are reduced when all of them are there, one after another or copied
    to one long tensor."""

    def __init__(self, module: nn.Module, group: dist.ProcessGroup, *, flat: bool) -> None:
        self._module, self._group, self._flat = module, group, flat

    def finish(self) -> None:
        """Reduces, divides, and puts back."""
        gradients = [
            _local(each.grad) for each in self._module.parameters() if each.grad is not None
        ]
        reduced = gradients
        if self._flat:
            by_type: dict[torch.dtype, list[Tensor]] = {}
            for each in gradients:
                by_type.setdefault(each.dtype, []).append(each)
            reduced = [torch.cat([one.flatten() for one in same]) for same in by_type.values()]
        for each in reduced:
            dist.all_reduce(each, group=self._group)
            each.div_(dist.get_world_size(self._group))
        if self._flat:
            for whole, same in zip(reduced, by_type.values(), strict=True):
                pieces = whole.split([each.numel() for each in same])
                for each, piece in zip(same, pieces, strict=True):
                    each.copy_(piece.view_as(each))

    def paused(self) -> AbstractContextManager[None]:
        """Nothing is sent before `finish`."""
        return nullcontext()


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
