"""Greedy generation by speculation: several tokens are guessed, and checked in one pass.

A pass over a guess of n tokens costs little more than one over a single token, for it reads the same
weights. The guess comes from the text itself (n-gram lookup, as Saxena's prompt lookup decoding, 2023): what
followed the last time that the text ended as it does now. A token of the guess is kept while the model would
have chosen it, and behind the last one kept stands the model's own choice. The text is that of `generate`,
token for token, where equal sums are rounded alike; in few bits two tokens of nearly equal logits may change
places.
"""

from collections.abc import Sequence
from time import perf_counter

import torch
from torch import nn

from peakward.lab.inference.generate import Generated, up_to_end, wait
from peakward.lab.inference.sequences import SequenceCache

LONGEST_NGRAM = 3


def guess(ids: Sequence[int], n: int, longest: int = LONGEST_NGRAM) -> list[int]:
    """At most n tokens that followed the latest earlier place where the text is as at its end.

    The longest equal end counts, of `longest` tokens at most; none where not even one token is equal.
    """
    for length in range(min(longest, len(ids) - 1), 0, -1):
        end = list(ids[-length:])
        for at in range(len(ids) - length - 1, -1, -1):
            if list(ids[at : at + length]) == end:
                return list(ids[at + length : at + length + n])
    return []


@torch.inference_mode()
def speculate(
    model: nn.Module,
    prompt: Sequence[int],
    cache: SequenceCache,
    *,
    n_guessed: int,
    max_new_tokens: int,
    ends: frozenset[int] = frozenset(),
) -> Generated:
    """Continues one prompt greedily in row 0 of an empty cache, which holds all tokens and not a ring.

    Args:
        n_guessed: the most tokens that are guessed at a time.
        ends: the tokens that end a text.

    Raises:
        PeakwardError: an empty prompt, or a cache that is too small.
    """
    device = torch.device(cache.device)
    began = perf_counter()
    ids = [*prompt, int(cache.prefill(model, 0, prompt).argmax())]
    wait(device)
    first = perf_counter()
    n_steps = guessed = kept = positions = 0
    while (n_left := len(prompt) + max_new_tokens - len(ids)) and ids[-1] not in ends:
        # The last token of a pass is the model's own choice, so that one guess fewer fills what is left.
        drafted = guess(ids, min(n_guessed, n_left - 1))
        given = torch.tensor([[ids[-1], *drafted]], device=device)
        logits = cache.all_logits(model, given, slice(0, 1), n_logits=given.shape[1])
        chosen: list[int] = logits[0].argmax(-1).tolist()
        right = _equal(drafted, chosen)
        new = up_to_end(chosen[: right + 1], ends)
        ids += new
        positions += cache.reach(0)
        cache.trim(0, len(ids) - 1)
        n_steps, guessed, kept = n_steps + 1, guessed + len(drafted), kept + min(right, len(new))
    wait(device)
    return Generated(
        tokens=[ids[len(prompt) :]],
        prefill_s=first - began,
        decode_s=perf_counter() - first,
        n_steps=n_steps,
        positions=positions / max(1, n_steps),
        n_guessed=guessed,
        n_kept=kept,
    )


def _equal(one: Sequence[int], other: Sequence[int]) -> int:
    """How many of the first tokens are equal."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
