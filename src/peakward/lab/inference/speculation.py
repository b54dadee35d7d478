"""Speculation: several tokens are guessed, and checked in one pass (Leviathan et al. 2023).

A pass over a few tokens costs little more than one over a single token, for it reads the same weights. Of
the guessed tokens those are kept that the rule accepts, and behind the last one kept stands a token of the
model's own. The greedy text is that of `Decoding`, token for token, where equal sums are rounded alike; in
few bits two tokens of nearly equal logits may change places. A drawn text has the model's distribution,
whatever guesses.

Guess, pass, rule and the taking back of what was wrong are one step on the device, for all rows at once.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from peakward.lab.inference.decoding import Decoding
from peakward.lab.inference.drafts import Drafter, Guess, Text, require_all
from peakward.lab.inference.passes import sent
from peakward.lab.inference.sampling import drawn, first_above, probabilities
from peakward.lab.inference.sequences import SequenceCache
from peakward.records.generation import Sampling


class Counts(NamedTuple):
    """The fate of the guesses so far."""

    n_guessed: int
    """Guessed tokens that the text had room for, before its end."""
    n_kept: int
    """Guessed tokens that stand in it. The last token of a round counts as the model's own, also where it was
    guessed rightly, as the end of a text may be."""
    accepted: tuple[int, ...]
    """The rounds of active rows in which 0, 1, … of the guessed tokens were accepted."""


def judged(p: Tensor, guess: Guess, accept: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """How many guessed tokens are kept, and the token behind them, each (rows,).

    A token x that was drawn with probability q(x) is kept with probability min(1, p(x)/q(x)). The first one
    that is not gives place to a token drawn by max(p - q, 0), and behind k that are all kept stands one
    drawn by p. So each token falls with its probability p, whatever q is. A token that was not drawn has
    q(x) = 1.

    Args:
        p: (rows, k + 1, vocab): the model's probabilities, behind the last token and behind each guessed.
        accept: draws (rows, k).
        last: draws (rows, k + 1), for the token behind 0, 1, … kept.
    """
    tokens, k = guess.tokens[..., None], guess.tokens.shape[1]
    q = guess.likely
    if q is None:
        q = torch.zeros_like(p[:, :k]).scatter(2, tokens, 1.0)
    # As u < p/q, for q is above 0 where a token was drawn.
    right = accept * q.gather(2, tokens)[..., 0] < p[:, :k].gather(2, tokens)[..., 0]
    n_right = right.long().cumprod(1).sum(1)
    row = torch.arange(len(p), device=p.device)
    own = p[row, n_right]
    beside = torch.cat((q, torch.zeros_like(p[:, :1])), dim=1)[row, n_right]
    rest = (own - beside).clamp(min=0)
    # Nothing is left where both are equal, and then nothing is refused but by rounding.
    rest = torch.where(rest.sum(-1, keepdim=True) > 0, rest, own)
    return n_right, first_above(rest, last[row, n_right])


class Speculation(Decoding):
    """Texts in the rows of a cache, of which a step makes one token or several."""

    def __init__(
        self,
        model: nn.Module,
        cache: SequenceCache,
        drafter: Drafter,
        *,
        n_guessed: int,
        by: Sampling,
        most_new_tokens: int,
        ends: frozenset[int] = frozenset(),
    ) -> None:
        """
        Args:
            cache: with room for n_guessed tokens behind each text.
            n_guessed: the tokens that a step guesses, at least 1.

        Raises:
            PeakwardError: as `Decoding`; a cache that drops tokens, or a drafter of another vocabulary.
        """
        super().__init__(
            model,
            cache,
            by=by,
            most_new_tokens=most_new_tokens,
            ends=ends,
            n_extra=n_guessed,
        )
        require_all(cache)
        drafter.check(cache.shape.vocab_size)
        self.drafter = drafter
        n_rows, device = len(cache.lengths), cache.device
        self._text = torch.zeros((n_rows, int(cache.limit) + 1), dtype=torch.int64, device=device)
        # For guesses and for whether they are kept; the draws of `Decoding` are for what stands behind.
        # A place's draws serve once: what was guessed behind a refused token has decided nothing.
        self._guessing, self._accepting = (
            torch.zeros_like(self._draws),
            torch.zeros_like(self._draws),
        )
        self._counts = torch.zeros(2, dtype=torch.int64, device=device)
        self._accepted = torch.zeros(n_guessed + 1, dtype=torch.int64, device=device)

    def fits(self, prompt: Sequence[int], n_new: int) -> bool:
        """See `Decoding`. The drafter has room for it too."""
        fits = super().fits(prompt, n_new)
        return self.drafter.fits(prompt, n_new + self.n_extra) and fits

    def admit(self, row: int, prompt: Sequence[int], n_new: int, number: int) -> None:
        """See `Decoding`."""
        super().admit(row, prompt, n_new, number)
        self.drafter.admit(row, prompt, n_new + self.n_extra)
        n = len(prompt)
        self._text[row, :n] = sent(prompt, torch.int64, self.cache.device)
        self._text[row, n] = self._ids[row, 0]

    def release(self, row: int) -> None:
        """See `Decoding`."""
        super().release(row)
        self.drafter.release(row)

    def run(self, n: int) -> None:
        """See `Decoding`. The host knows how many tokens a step made only where it need not wait for it."""
        for _ in range(n):
            super().run(1)
            if self.device.type == "cpu":
                self.cache.lengths = self.cache.held.tolist()
            else:
                most = self._text.shape[1] - 1 - self.n_extra
                self.cache.lengths = [
                    min(each + self.n_extra, most) if left else each
                    for each, left in zip(self.cache.lengths, self.left, strict=True)
                ]

    def counts(self) -> Counts:
        """The fate of the guesses so far. It waits for the device."""
        n_guessed, n_kept = self._counts.tolist()
        return Counts(n_guessed, n_kept, tuple(self._accepted.tolist()))

    def _draw(self, row: int, number: int) -> None:
        # Three neighbours for each place, which do not depend on how many tokens may follow.
        kinds = drawn(self.by.seed, number, 3 * self._draws.shape[1]).reshape(-1, 3).T
        for held, draws in zip(
            (self._draws, self._guessing, self._accepting), kinds.tolist(), strict=True
        ):
            held[row] = sent(draws, torch.float64, self.cache.device)

    def _step(self, longest: int) -> None:
        k, active = self.n_extra, ~self._ended
        place = torch.arange(k + 1, device=self.device)
        made, n = self._made[:, None] + place, self.cache.held + 1
        text = Text(self._text, n, active, longest)
        guess = self.drafter.guess(text, self.by, self._guessing.gather(1, made[:, :k]))
        given = torch.cat((self._ids, guess.tokens), dim=1)
        logits = self.cache.score(self.model, given, active, longest)
        n_right, last = self._judged(logits, guess, made)
        new = torch.where(place < n_right[:, None], given.roll(-1, 1), last[:, None])
        is_end = (new[..., None] == self._ends).any(-1) & (place <= n_right[:, None])
        before_end = torch.where(is_end, place, k).amin(1)
        room = self._most - self._made
        n_new = torch.minimum(torch.minimum(n_right, before_end) + 1, room) * active
        self._out.scatter_(1, made, new)
        self._text.scatter_(1, (n[:, None] + place).clamp(max=self._text.shape[1] - 1), new)
        self._ids.copy_(new.gather(1, (n_new - 1).clamp(min=0)[:, None]))
        self.cache.held += n_new
        self._made += n_new
        self._ended |= (is_end & (place < n_new[:, None])).any(1) | (self._made >= self._most)
        # Guesses behind one that rightly ends the text could not be kept.
        useful = torch.where(before_end < n_right, before_end, k)
        fitting = torch.minimum((room - 1).clamp(max=k), useful) * active
        self._counts += torch.stack((fitting.sum(), ((n_new - 1) * active).sum()))
        self._accepted += ((n_right[:, None] == place) & active[:, None]).sum(0)

    def _judged(self, logits: Tensor, guess: Guess, made: Tensor) -> tuple[Tensor, Tensor]:
        if self.by.temperature == 0:
            best = logits.argmax(-1)
            n_right = (guess.tokens == best[:, :-1]).long().cumprod(1).sum(1)
            return n_right, best.gather(1, n_right[:, None])[:, 0]
        accept, last = self._accepting.gather(1, made[:, :-1]), self._draws.gather(1, made)
        return judged(probabilities(logits, self.by), guess, accept, last)
