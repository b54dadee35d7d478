"""Drafters, which guess the next tokens of a text: from its own earlier words, or by a smaller model.

A guess is made within the step that checks it (`speculation`), for all rows at once, and reads nothing back.
"""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple, Protocol

import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn.functional import pad

from peakward.lab.inference.sampling import first_above, probabilities
from peakward.lab.inference.sequences import SequenceCache
from peakward.lab.models.decoder import Decoder
from peakward.records.errors import PeakwardError
from peakward.records.generation import Sampling

LONGEST_NGRAM = 3


class Text(NamedTuple):
    """The texts of all rows, as a drafter sees them."""

    ids: Tensor
    """(rows, places) of int64."""
    n: Tensor
    """(rows,): the tokens of each. The last one is not in the model's cache yet."""
    active: Tensor
    """(rows,) of bool: the texts that go on."""
    longest: int
    """The most tokens that one may have, those guessed included."""


class Guess(NamedTuple):
    """Guessed tokens."""

    tokens: Tensor
    """(rows, k) of int64."""
    likely: Tensor | None = None
    """(rows, k, vocab): the probabilities that each was drawn with. None: it was not drawn."""


class Drafter(Protocol):
    """Guesses tokens."""

    def check(self, vocab_size: int) -> None:
        """Raises PeakwardError unless its tokens are those of a model of so many."""

    def fits(self, prompt: Sequence[int], n_new: int) -> bool:
        """Whether there is room now for a prompt and so many tokens to come, in an empty row.

        Raises:
            PeakwardError: there never is.
        """

    def admit(self, row: int, prompt: Sequence[int], n_new: int) -> None:
        """Hears of a prompt that fits, in an empty row, with so many tokens to come at most."""

    def release(self, row: int) -> None:
        """Hears that a row is empty."""

    def guess(self, text: Text, by: Sampling, draws: Tensor) -> Guess:
        """The next k tokens of each text; draws (rows, k) are uniform in [0, 1)."""


class NGrams:
    """Guesses what followed the last time that a text ended as it does now (prompt lookup decoding, Saxena
    2023)."""

    def check(self, vocab_size: int) -> None:
        """See `Drafter`. It knows no tokens but the text's."""

    def fits(self, prompt: Sequence[int], n_new: int) -> bool:  # noqa: ARG002 (it keeps nothing)
        """See `Drafter`."""
        return True

    def admit(self, row: int, prompt: Sequence[int], n_new: int) -> None:
        """See `Drafter`."""

    def release(self, row: int) -> None:
        """See `Drafter`."""

    def guess(self, text: Text, by: Sampling, draws: Tensor) -> Guess:  # noqa: ARG002 (not drawn)
        """See `Drafter`."""
        return Guess(looked_up(text.ids, text.n, draws.shape[1]))


def looked_up(ids: Tensor, n: Tensor, k: int, longest: int = LONGEST_NGRAM) -> Tensor:
    """The k tokens that followed the latest earlier place where a text is as at its end: (rows, places) of
    texts of n (rows,) tokens → (rows, k).

    The longest equal end counts, of `longest` tokens at most. Where what followed reaches the text's end, it
    is taken from there again. Where nothing is equal, the last token is repeated.
    """
    place = torch.arange(ids.shape[1], device=ids.device)
    end = n[:, None] - 1
    # `at` is the last place of an earlier equal end; that of none is the text's own.
    at, equal = end, place < end
    for back in range(longest):
        own = ids.gather(1, (end - back).clamp(min=0))
        shifted = torch.roll(ids == own, back, dims=1) & (place >= back)
        equal = equal & shifted & (end >= back)
        latest = torch.where(equal, place, -1).amax(1, keepdim=True)
        at = torch.where(latest >= 0, latest, at)
    following = torch.arange(k, device=ids.device) % (end - at).clamp(min=1)
    return ids.gather(1, torch.where(at < end, at + 1 + following, end))


class ModelDraft:
    """Guesses as a smaller model of the same tokens goes on.

    If all guesses were right, the draft's cache does not yet hold the last of them. So each guess begins with
    the last two tokens of the text, at the price of one, for a step's time is that of reading the weights.

    How many tokens a row holds follows from its text, guess by guess. Between guesses `held` is 0 in every
    row, as a prompt finds it in an empty one: a guess moves the rows without a text too.
    """

    def __init__(self, model: nn.Module, cache: SequenceCache, n_tokens: int | None = None) -> None:
        """
        Args:
            cache: empty, of the model's shape and as many rows as the target's.
            n_tokens: the first tokens, which mean the same in both models: published models of one family
                have unequal rows behind them. None: all, and the target must have as many.

        Raises:
            PeakwardError: a cache that drops tokens.
        """
        require_all(cache)
        self.model, self.cache = model, cache
        self.n_tokens = n_tokens
        self._width = cache.shape.vocab_size

    def check(self, vocab_size: int) -> None:
        """See `Drafter`."""
        self._width = vocab_size
        if self.n_tokens is None and vocab_size != (own := self.cache.shape.vocab_size):
            raise PeakwardError(
                f"expected a draft of the model's vocabulary, {vocab_size:,} tokens, got one of "
                f"{own:,}: the model must be able to score its tokens"
            )

    def fits(self, prompt: Sequence[int], n_new: int) -> bool:
        """See `Drafter`."""
        return self.cache.fits(prompt, n_new)

    def admit(self, row: int, prompt: Sequence[int], n_new: int) -> None:
        """See `Drafter`. A token that only the model knows stands as the draft's last one, as in guesses."""
        last = self.cache.shape.vocab_size - 1
        self.cache.prefill(self.model, row, [min(each, last) for each in prompt])
        self.cache.reserve(row, n_new)

    def release(self, row: int) -> None:
        """See `Drafter`."""
        self.cache.release(row)

    def guess(self, text: Text, by: Sampling, draws: Tensor) -> Guess:
        """See `Drafter`."""
        first = (text.n - 2).clamp(min=0)
        given = text.ids.gather(1, torch.stack((first, first + 1), dim=1))
        given = given.clamp(max=self.cache.shape.vocab_size - 1)
        self.cache.held.copy_(first)
        tokens, likely = [], []
        for draw in draws.unbind(1):
            logits = self.cache.score(self.model, given, text.active, text.longest)[:, -1]
            logits = self._of_both(logits)
            self.cache.held += given.shape[1]
            if by.temperature == 0:
                token = logits.argmax(-1)
            else:
                likely.append(probabilities(logits, by))
                token = first_above(likely[-1], draw)
            tokens.append(token)
            given = token[:, None]
        self.cache.held.zero_()
        return Guess(torch.stack(tokens, 1), torch.stack(likely, 1) if likely else None)

    def _of_both(self, logits: Tensor) -> Tensor:
        """The logits (rows, own vocab) of the tokens that both have, as wide as the target's."""
        known = logits[:, : self.n_tokens]
        return pad(known, (0, self._width - known.shape[1]), value=-inf)


def without_blocks(model: Decoder, left_out: Sequence[int]) -> Decoder:
    """The model without some of its blocks, as a draft of its own: the others are the same in memory.

    Raises:
        PeakwardError: no block, or one that the model does not have.
    """
    n = model.shape.n_layers
    kept = [block for number, block in enumerate(model.blocks) if number not in left_out]
    if not left_out or not 0 <= min(left_out) <= max(left_out) < n or not kept:
        raise PeakwardError(
            f"expected some of the blocks 0 to {n - 1} to leave out and one to keep, got "
            f"{min(left_out, default='none')} to {max(left_out, default='none')}: name others"
        )
    shape = replace(model.shape, name=f"{model.shape.name}:L{len(kept)}", n_layers=len(kept))
    with torch.device("meta"):
        draft = Decoder(replace(shape, n_layers=0), model.blocks[0].attention.attention)  # type: ignore[union-attr, arg-type]
    draft.shape, draft.blocks = shape, nn.ModuleList(kept)
    draft.embedding, draft.readout = model.embedding, model.readout
    if shape.positions == "learned":
        draft.position_embedding = model.position_embedding
    return draft.eval()


def require_all(cache: SequenceCache) -> None:
    """Raises PeakwardError unless the cache keeps all tokens, some of which a wrong guess takes back."""
    if not cache.keeps_all:
        raise PeakwardError(
            f"expected a cache that keeps all tokens for guesses, got a {type(cache).__name__}, which drops "
            "some for later ones: take a contiguous one or pages"
        )
