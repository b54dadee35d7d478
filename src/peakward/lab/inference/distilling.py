"""A draft distilled from its model: some blocks give place to one matrix that is fitted to what they add.

The model without some of its blocks guesses at the price of the others, and its guesses are the worse the
more it lacks. What the missing blocks add to the residual stream is in part a linear function of what they
are given. One matrix costs little beside a block (0.3 of 3.5 million weights in SmolLM2-135M), and fitting
it takes no gradients: least squares have a closed form. It sees texts of the model's own, each begun by a
random token, so that it needs no data.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from peakward.lab.inference.decoding import Decoding
from peakward.lab.inference.drafts import without_blocks
from peakward.lab.inference.generate import generate
from peakward.lab.inference.sequences import ContiguousCache
from peakward.lab.models.decoder import Decoder
from peakward.records.errors import PeakwardError
from peakward.records.generation import Sampling

N_TEXTS, LENGTH = 32, 64
"""Texts that a matrix is fitted to, and their tokens."""
AT_ONCE = 4
"""Texts that are read together: the logits of one with 49,152 tokens take 13 MB in fp32."""
RIDGE = 0.1
"""The share of the diagonal's mean that is added to it. For SmolLM2-135M without blocks 6 to 23 the likeliest
token was the model's in 0.32 of 288 places of its greedy texts, in 0.30 with 0.01; without 12 to 17 in 0.67
and 0.66."""


def distilled(
    model: Decoder, left_out: range, *, attention: Literal["as-model", "flash-decode"]
) -> Decoder:
    """The model with a fitted matrix in the place of neighbouring blocks; the others are the same in memory.

    Args:
        attention: of the cache through which the model makes its texts.

    Raises:
        PeakwardError: what `drafts.without_blocks` raises, or the first block among those left out; a matrix
            that is not finite.
    """
    draft = without_blocks(model, left_out)
    if left_out.start == 0:
        raise PeakwardError(
            "expected a block before those that a matrix takes the place of, got 0 as the first: begin at 1"
        )
    before = left_out.start - 1
    found = fitted(*passed(model, left_out, own_texts(model, attention)))
    matrix = found.to(model.embedding.weight)
    if not matrix.isfinite().all():
        raise PeakwardError(
            f"expected a finite matrix in the place of blocks {left_out[0]} to {left_out[-1]}, got NaN or "
            "infinity: the model computes such itself; look at its weights, or take a draft skip:A-B"
        )
    draft.blocks[before] = Bridged(draft.blocks[before], matrix)
    return draft


class Bridged(nn.Module):
    """A block with a matrix behind it, which adds to the residual stream what missing blocks would."""

    def __init__(self, block: nn.Module, matrix: Tensor) -> None:
        super().__init__()
        self.block, self.matrix = block, nn.Parameter(matrix, requires_grad=False)

    def forward(self, *given: Any) -> Tensor:
        """As `decoder.Block`."""
        x: Tensor = self.block(*given)
        return x + of_unit_size(x) @ self.matrix


def of_unit_size(x: Tensor) -> Tensor:
    """Each token over the root of its elements' mean square, which the norms of blocks take out too."""
    return nn.functional.rms_norm(x, x.shape[-1:])


@torch.inference_mode()
def own_texts(model: Decoder, attention: Literal["as-model", "flash-decode"]) -> Tensor:
    """Texts that the model draws at temperature 1 behind one random token each, (N_TEXTS, LENGTH)."""
    weights, n_new = model.embedding.weight, LENGTH - 1
    cache = ContiguousCache(
        model.shape,
        n_rows=N_TEXTS,
        capacity=LENGTH,
        device=str(weights.device),
        dtype=weights.dtype,
        attention=attention,
    )
    generator = torch.Generator().manual_seed(0)
    first = torch.randint(model.shape.vocab_size, (N_TEXTS, 1), generator=generator).tolist()
    decoding = Decoding(model, cache, by=Sampling(temperature=1.0), most_new_tokens=n_new)
    made = generate(decoding, first).tokens
    return torch.tensor([a + b for a, b in zip(first, made, strict=True)], device=weights.device)


@torch.inference_mode()
def passed(model: Decoder, blocks: range, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The residual stream that goes into the first of these blocks and that comes out of the last, each
    (tokens, d_model), while the model reads ids (texts, length)."""
    into: list[Tensor] = []
    out: list[Tensor] = []
    hooks = (
        model.blocks[blocks[0]].register_forward_pre_hook(lambda _, given: into.append(given[0])),
        model.blocks[blocks[-1]].register_forward_hook(lambda _, __, made: out.append(made)),
    )
    try:
        for texts in ids.split(AT_ONCE):
            model(texts)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.cat(into).flatten(0, 1), torch.cat(out).flatten(0, 1)


def fitted(before: Tensor, behind: Tensor) -> Tensor:
    """The matrix W (d_model, d_model) that makes of tokens `of_unit_size` what blocks add to them, by
    least squares with a ridge. Each token counts by its size behind the blocks, by which the next norm
    divides; unweighted, the first tokens of texts, whose stream is a hundred times as large, would be all
    that is fitted.

    Args:
        before, behind: (tokens, d_model).

    Returns:
        fp64.
    """
    # A token whose row of the embedding is 0, as of those that pad a vocabulary, has no size.
    weight = 1 / behind.double().norm(dim=1, keepdim=True).clamp(min=1e-30)
    given = of_unit_size(before.double()) * weight
    added = (behind.double() - before.double()) * weight
    moment = given.mT @ given
    moment.diagonal().add_(RIDGE * moment.diagonal().mean())
    return torch.linalg.solve(moment, given.mT @ added)
