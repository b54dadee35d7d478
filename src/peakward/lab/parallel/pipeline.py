"""The reference decoder as stages of a pipeline, run by torch.distributed.pipelining."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.distributed.tensor import DTensor

from peakward.lab.models import decoder
from peakward.lab.models.decoder import Decoder
from peakward.records.layout import Layout, expect_stages


class Stage(nn.Module):
    """Some successive blocks; the first stage has the embedding, the last one the readout.

    The names of its parameters are those of the whole model.
    """

    def __init__(self, model: Decoder, first: int, end: int) -> None:
        super().__init__()
        self.shape = model.shape
        self.around: Callable[[], AbstractContextManager[None]] = nullcontext
        """Makes the context of a forward pass, such as autocast."""
        blocks = {str(at): model.blocks[at] for at in range(first, end)}
        self.blocks = nn.ModuleDict(blocks)
        self.is_first, self.is_last = first == 0, end == len(model.blocks)
        if self.is_first:
            self.embedding = model.embedding
            if model.shape.positions == "learned":
                self.position_embedding = model.position_embedding
        if self.is_last:
            self.readout = model.readout

    def forward(self, x: Tensor) -> Tensor:
        """Token ids (batch, seq_len), or what the stage before gave (batch, seq_len, d_model), to the input
        of the next stage, or logits (batch, seq_len, vocab)."""
        with self.around():
            return self._passed_on(x)

    def _passed_on(self, x: Tensor) -> Tensor:
        shape, seq_len = self.shape, x.shape[1]
        if self.is_first:
            x = self.embedding(x)
            if shape.positions == "learned":
                x = x + self.position_embedding.weight[:seq_len]
            elif shape.positions == "sinusoidal":
                x = decoder.with_sinusoids(shape, x)
        cos, sin = None, None
        if shape.positions == "rope":
            cos, sin = decoder.rotation(shape, seq_len, x)
        bias = decoder.score_bias(shape, seq_len, x)
        for block in self.blocks.values():
            x = block(x, cos, sin, bias)
        return self.readout(x, None) if self.is_last else x


def cut(model: Decoder, layout: Layout, rank: int) -> list[Stage]:
    """The stages of one rank: with several, rank r has r, r + pp, r + 2·pp, ….

    Blocks that do not divide go to the first stages.

    Raises:
        PeakwardError: fewer blocks than stages.
    """
    n_stages, n_blocks = layout.pp * layout.stages_per_rank, len(model.blocks)
    expect_stages(layout, n_blocks)
    sizes = [n_blocks // n_stages + (at < n_blocks % n_stages) for at in range(n_stages)]
    ends = torch.tensor(sizes).cumsum(0).tolist()
    chosen = range(rank, n_stages, layout.pp)
    return [Stage(model, ends[at] - sizes[at], ends[at]) for at in chosen]


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy in at least fp32, as `kernels.ops.loss.of_torch`."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)


SCHEDULES: dict[str, Any] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
}


class Pipeline:
    """The stages of this rank under a schedule of torch's. Losses are the mean over micro-batches."""

    def __init__(
        self,
        stages: list[Stage],
        called: list[nn.Module],
        layout: Layout,
        mesh: DeviceMesh,
        *,
        loss: Callable[[Tensor, Tensor], Tensor] = mean_loss,
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """
        Args:
            stages: from `cut`.
            called: the same, as the data strategy wraps them.
            mesh: the axis `pp`.
            around: makes the context of each stage's forward pass.
        """
        for each in stages:
            each.around = around
        group, rank = mesh.get_group(), mesh.get_local_rank()
        self.stages = stages
        self._is_first, self._is_last = stages[0].is_first, stages[-1].is_last
        numbers = range(rank, layout.pp * layout.stages_per_rank, layout.pp)
        made = [
            PipelineStage(
                each, number, layout.pp * layout.stages_per_rank, _place(each), group=group
            )
            for each, number in zip(called, numbers, strict=True)
        ]
        kind = SCHEDULES[layout.schedule]
        self._schedule = kind(
            made if layout.schedule == "interleaved" else made[0],
            n_microbatches=layout.n_micro_batches,
            loss_fn=loss,
        )
        self._tie = _Tie(stages, mesh) if stages[0].shape.tied_head and layout.pp > 1 else None

    def run(self, ids: Tensor, targets: Tensor) -> Tensor | None:
        """Forward and backward of all micro-batches; the mean loss on the rank with the last stage."""
        losses: list[Tensor] = []
        arguments = (ids,) if self._is_first else ()
        # torch would keep the logits of all micro-batches, and then put them together.
        if self._is_last:
            self._schedule.step(*arguments, target=targets, losses=losses, return_outputs=False)
        else:
            self._schedule.step(*arguments, return_outputs=False)
        if self._tie is not None:
            self._tie.add_up()
        return torch.stack(losses).mean().detach() if losses else None


class _Tie:
    """A head that is the table of tokens, on the first and the last rank: both get the sum of their
    gradients, and so make the same update."""

    def __init__(self, stages: list[Stage], mesh: DeviceMesh) -> None:
        pp = mesh.mesh.tolist()
        # Every rank makes every group, as torch asks: those of all pipelines of the job.
        self._group = _ends([pp[0], pp[-1]])
        self._weights = [each.embedding.weight for each in stages if each.is_first]
        self._weights += [each.readout.head.weight for each in stages if each.is_last]

    def add_up(self) -> None:
        for each in self._weights:
            gradient = each.grad
            assert gradient is not None
            local = gradient
            if isinstance(each, DTensor) and isinstance(gradient, DTensor):
                # torch gives the table's gradient whole where the table is split.
                gradient = gradient.redistribute(placements=each.placements)
                each.grad, local = gradient, gradient.to_local()
            dist.all_reduce(local, group=self._group)


def _ends(own: list[int]) -> dist.ProcessGroup | None:
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, own)
    found = None
    for ends in sorted({tuple(each) for each in gathered}):
        group = dist.new_group(list(ends))
        if dist.get_rank() in ends:
            found = group
    return found


def _place(stage: nn.Module) -> torch.device:
    return next(stage.parameters()).device
