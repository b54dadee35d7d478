"""Lever `compile`: torch.compile of the repeated block, or of the whole model."""

from torch import nn

from peakward.lab.levers.checkpointing import Recomputed
from peakward.lab.models.decoder import Decoder
from peakward.records.case import Compile, CompileScope


def apply(model: Decoder, mode: Compile, scope: CompileScope) -> None:
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
