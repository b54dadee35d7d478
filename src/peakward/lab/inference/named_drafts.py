"""Drafts by their names: the text's own words, the model without some blocks, or another model."""

import torch

from peakward.lab.inference.distilling import distilled
from peakward.lab.inference.drafts import without_blocks
from peakward.lab.inference.pretrained import AnyModel, AnyPretrained, attention_of, load_any
from peakward.lab.models.decoder import Decoder
from peakward.records.errors import PeakwardError, quoted

NGRAMS = "ngrams"
SKIP = "skip:"
"""Before the first and the last block that the model leaves out when it guesses: "skip:12-17"."""
DISTILLED = "distilled:"
"""As `SKIP`, of blocks that a fitted matrix takes the place of."""
DIGITS = 12
"""The most that the numbers of two blocks have together."""


def draft_of(
    found: AnyPretrained, named: str, device: str, dtype: torch.dtype
) -> "AnyModel | None":
    """The model that guesses; None where the text's own words do.

    Raises:
        PeakwardError: a draft with other tokens than the model's, or one that is not there or cannot be read;
            blocks that the model does not have; blocks to leave out of a model that transformers computes.
    """
    if named == NGRAMS:
        return None
    if named.startswith((SKIP, DISTILLED)):
        return _of_blocks(found.model, named, device)
    draft = load_any(named, attention="sdpa", device=device, dtype=dtype)
    if not found.words.has_tokens_of(draft.words):
        raise PeakwardError(
            f"expected a draft with the tokens of {found.model.shape.name}, got {draft.model.shape.name} "
            "with others: the model must be able to score them"
        )
    return draft.model


def _of_blocks(model: AnyModel, named: str, device: str) -> Decoder:
    """A draft of the model's own blocks.

    Raises:
        PeakwardError: as `_blocks`, or a model that transformers computes.
    """
    if not isinstance(model, Decoder):
        raise PeakwardError(
            f"expected a model in Peakward's own decoder to leave blocks out of, got {model.shape.name}, "
            f"which transformers computes: take {NGRAMS} or another model to guess"
        )
    if named.startswith(SKIP):
        return without_blocks(model, _blocks(model, named, SKIP))
    return distilled(model, _blocks(model, named, DISTILLED), attention=attention_of(model, device))


def _blocks(model: Decoder, named: str, prefix: str) -> range:
    """The blocks from the first to the last that are named behind the prefix.

    Raises:
        PeakwardError: other words than numbers of blocks, or blocks that the model does not have.
    """
    first, _, last = named.removeprefix(prefix).partition("-")
    if not (first.isdecimal() and (last or first).isdecimal()) or len(first + last) > DIGITS:
        raise PeakwardError(
            f"expected the first and the last block to leave out, got {quoted(named)}: write {prefix}12-17"
        )
    blocks, n = range(int(first), int(last or first) + 1), model.shape.n_layers
    if not blocks or blocks[-1] >= n:
        raise PeakwardError(
            f"expected some of the blocks 0 to {n - 1} to leave out, the first one first, got "
            f"{quoted(named)}: name others"
        )
    return blocks
