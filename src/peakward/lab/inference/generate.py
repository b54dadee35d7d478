"""Generation: prompts of any lengths to tokens, one a step and row, with the times of both parts."""

from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

import torch

from peakward.lab.inference.decoding import Decoding, Looks
from peakward.lab.inference.speculation import Counts, Speculation
from peakward.records.errors import PeakwardError


class Generated(NamedTuple):
    """The new tokens of each prompt, and how long they took."""

    tokens: list[list[int]]
    """Up to the token that ended the text, itself included."""
    prefill_s: float
    """Until the first token of every prompt was there."""
    decode_s: float
    """From there to the end."""
    text_s: float
    """The part of it until the last text had ended. A GPU makes steps beyond that before the host knows;
    they are as long as the others."""
    n_steps: int
    """Passes after the first tokens; each makes a token of every prompt that has not ended."""
    positions: float
    """The positions that a step attended to, over all prompts: the mean over steps, or over the tokens of a
    text where steps make several."""
    counts: Counts = Counts(0, 0, ())
    """The fate of all guesses of the decoding so far."""


@torch.inference_mode()
def generate(decoding: Decoding, prompts: Sequence[Sequence[int]]) -> Generated:
    """Fills the rows of a decoding with the prompts, makes new tokens for all of them, and empties the rows.

    Equal seeds give equal tokens for equal prompts in the same order. On a GPU steps are replayed from a
    graph, which is captured before any time begins.

    Args:
        prompts: one for each row of its cache, or fewer.

    Raises:
        PeakwardError: no prompt, or more than the cache has rows; one that is empty or has a token that the
            model does not know; or a cache that is too small.
    """
    n_rows = len(decoding.cache.lengths)
    if not 1 <= len(prompts) <= n_rows:
        raise PeakwardError(
            f"expected 1 to {n_rows:,} prompts for the rows of the cache, got {len(prompts):,}: give one for "
            "each row, or make a cache of as many rows"
        )
    for ids in prompts:
        decoding.fits(ids, decoding.most_new_tokens)
    try:
        return _made(decoding, prompts)
    finally:
        for row in range(len(prompts)):
            decoding.release(row)


def _made(decoding: Decoding, prompts: Sequence[Sequence[int]]) -> Generated:
    """The tokens of prompts that fit; their rows stay filled."""
    cache, max_new_tokens = decoding.cache, decoding.most_new_tokens
    if max_new_tokens > 1:
        longest = max(map(len, prompts))
        decoding.prepare(longest + 1, longest + max_new_tokens)
    wait(decoding.device)
    began, before = perf_counter(), decoding.n_steps
    for row, ids in enumerate(prompts):
        decoding.admit(row, ids, max_new_tokens, row)
    wait(decoding.device)
    first = perf_counter()
    looks, n_ended = Looks(decoding), 0
    while (left := max(decoding.left)) and (n_ended := len(looks.next()[0])) < len(prompts):
        decoding.run(min(decoding.look_every, left))
    wait(decoding.device)
    decode_s = perf_counter() - first
    tokens = [text_of(decoding.text(row).tolist()) for row in range(len(prompts))]
    n_steps = decoding.n_steps - before
    n_needed = max(map(len, tokens)) - 1
    if decoding.n_extra:
        # They are looked at behind each step: those behind the look that was answered were made in vain.
        n_needed = n_steps - (looks.n_unanswered if n_ended == len(prompts) else 0)
    lengths = (
        (len(ids) + min(step * (len(new) / max(1, n_needed) if decoding.n_extra else 1), len(new)))
        for ids, new in zip(prompts, tokens, strict=True)
        for step in range(1, n_steps + 1)
    )
    return Generated(
        tokens=tokens,
        prefill_s=first - began,
        decode_s=decode_s,
        text_s=decode_s * n_needed / n_steps if n_steps else decode_s,
        n_steps=n_steps,
        positions=sum(cache.reach(round(each)) for each in lengths) / max(1, n_steps),
        counts=decoding.counts() if isinstance(decoding, Speculation) else Counts(0, 0, ()),
    )


def wait(device: torch.device) -> None:
    """Waits for what a GPU still has to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def text_of(made: list[int]) -> list[int]:
    """The tokens of what `Decoding.text` gives."""
    return made[: made[-1]]
