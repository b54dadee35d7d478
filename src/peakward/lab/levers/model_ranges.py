"""Ranges around the blocks and the attention of a decoder, there while a profile is taken.

Calls are replaced rather than hooked. A hook is part of the module's own call: of a compiled block
it would be traced into the block; and it does not see the end of a recomputed block, which torch
stops by an exception once the last tensor that it needs is there.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn

from peakward.kernels.ops.attention.api import in_ranges
from peakward.lab.levers.checkpointing import Recomputed
from peakward.lab.levers.compilation import is_compiled
from peakward.lab.levers.ranges import opened
from peakward.lab.models.decoder import Decoder, SelfAttention


class RangedBlock(nn.Module):
    """A block, called in a range."""

    def __init__(self, block: nn.Module, number: int) -> None:
        super().__init__()
        self.block, self.name = block, f"block {number}"

    def forward(self, x: Tensor, *shared: Tensor | None) -> Tensor:
        with opened(self.name):
            return self.block(x, *shared)


@contextmanager
def ranged(model: Decoder) -> Iterator[None]:
    """While it lasts, the model's blocks and their attention run in the ranges of `ranges`.

    Compiled code is left as it is, and not compiled again. Parameters, and their order, stay;
    afterwards the model is what it was.
    """
    with ExitStack() as changes:
        if not is_compiled(model):
            for number, (blocks, position) in enumerate(list(_sites(model.blocks))):
                changes.enter_context(_ranged_block(blocks, position, number))
        yield


def _sites(blocks: nn.ModuleList) -> Iterator[tuple[nn.ModuleList, int]]:
    """The list and the place in it that each block is called from.

    In a run of recomputed blocks these are the run's own, so that the recomputation opens them
    too; a run that is compiled, of one block always, is that block.
    """
    for position, block in enumerate(blocks):
        if isinstance(block, Recomputed) and not is_compiled(block):
            yield from _sites(block.blocks)
        else:
            yield blocks, position


@contextmanager
def _ranged_block(blocks: nn.ModuleList, position: int, number: int) -> Iterator[None]:
    block = blocks[position]
    inner = [] if is_compiled(block) else _attentions(block)
    plain = [each.attention for each in inner]
    for each in inner:
        each.attention = in_ranges(each.attention, opened)
    blocks[position] = RangedBlock(block, number)
    try:
        yield
    finally:
        blocks[position] = block
        for each, attention in zip(inner, plain, strict=True):
            each.attention = attention


def _attentions(block: nn.Module) -> list[SelfAttention]:
    return [each for each in block.modules() if isinstance(each, SelfAttention)]
