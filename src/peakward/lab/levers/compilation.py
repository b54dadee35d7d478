"""Levers that wrap the repeated blocks: `compile` and `checkpointing`.

`compile` is torch.compile of the repeated block, or of the whole model. `checkpointing` drops activations in
the forward pass and recomputes them in the backward pass (Chen et al. 2016, "Training deep nets with
sublinear memory cost"). Nothing here draws random numbers, so their state is not stashed (which a CUDA graph
could not do).
"""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from peakward.kernels.ops.flash_attention import operators as flash_attention
from peakward.lab.models.decoder import Decoder
from peakward.records.case import Checkpointing, Compile, CompileScope


def apply_compile(model: Decoder, mode: Compile, scope: CompileScope) -> None:
    """Compile in place.

    By block, Dynamo compiles one block's code and serves every layer with it: the 32 layers of
    `2.7B` cost one compilation. A recomputed run of several blocks is left to eager and the blocks
    in it compiled; of one block, the recomputation is compiled with it, so that the compiler sees
    what it may save.
    """
    if mode == "none":
        return
    parts = [model] if scope == "model" else [*_blocks(model), model.readout]
    for part in parts:
        part.compile(mode=None if mode == "default" else mode)


def is_compiled(module: nn.Module) -> bool:
    """Whether a call of the module goes to compiled code. torch keeps that in no public place."""
    return module._compiled_call_impl is not None


def _blocks(model: Decoder) -> list[nn.Module]:
    found: list[nn.Module] = []
    for block in model.blocks:
        several = isinstance(block, Recomputed) and len(block.blocks) > 1
        found.extend(block.blocks if several else [block])  # type: ignore[arg-type]
    return found


aten = torch.ops.aten
SAVED_BY_SELECTIVE = frozenset(
    {
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten._scaled_mm.default,
        aten._grouped_mm.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        flash_attention.attend.overload,
    }
)
"""Dear to recompute for what they hold: kept. Norms, rotations, activations: recomputed."""


def _policy(_context: object, op: object, *_args: object, **_kwargs: object) -> CheckpointPolicy:
    kept = op in SAVED_BY_SELECTIVE
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


selective = partial(create_selective_checkpoint_contexts, _policy)
"""The contexts of a checkpoint that keeps what is dear to recompute."""


class Recomputed(nn.Module):
    """A run of blocks of which only the input is kept (and, selectively, the dear results)."""

    def __init__(self, blocks: tuple[nn.Module, ...], *, keeps_dear: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
        if keeps_dear:
            self.options["context_fn"] = selective

    def _run(self, x: Tensor, *shared: Tensor | None) -> Tensor:
        for block in self.blocks:
            x = block(x, *shared)
        return x

    def forward(self, x: Tensor, *shared: Tensor | None) -> Tensor:
        if not torch.is_grad_enabled():
            return self._run(x, *shared)
        result: Tensor = checkpoint(self._run, x, *shared, **self.options)
        return result


def apply_checkpointing(model: Decoder, mode: Checkpointing) -> None:
    """Wrap the model's blocks. Parameter names change, the parameters do not."""
    if mode == "none":
        return
    run = math.ceil(math.sqrt(len(model.blocks))) if mode == "sqrt" else 1
    blocks = tuple(model.blocks)
    runs = (blocks[start : start + run] for start in range(0, len(blocks), run))
    model.blocks = nn.ModuleList(Recomputed(each, keeps_dear=mode == "selective") for each in runs)
