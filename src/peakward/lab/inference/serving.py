"""A queue of requests through the rows of one cache: a row takes the next request when its text has ended.

After Orca (Yu et al. 2022). Static batching, which it is measured against, takes as many requests as there
are rows and waits for the longest of them. Requests are taken in order; one waits until its prompt and all of
its tokens to come have room, so that none is ever put back.
"""

from collections import deque
from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from peakward.lab.inference.decoding import Decoding, Looks, Moment
from peakward.lab.inference.generate import text_of, wait
from peakward.records.errors import PeakwardError
from peakward.records.generation import Batching


class Request(NamedTuple):
    """A prompt, and the most tokens to make behind it."""

    ids: Sequence[int]
    max_new_tokens: int


class Served(NamedTuple):
    """The text of each request, in the order in which they came, and when its tokens were there."""

    tokens: list[list[int]]
    first_token_s: list[float]
    """From the start, when all requests were there."""
    done_s: list[float]
    """From the start to when the text was known to have ended."""
    serve_s: float
    n_steps: int
    """Steps of all rows."""
    row_use: float | None
    """The share of rows' steps that made a token; None where no step was made."""


@torch.inference_mode()
def serve(
    decoding: Decoding, requests: Sequence[Request], batching: Batching = "continuous"
) -> Served:
    """Makes the text of every request in the rows of a new decoding.

    A drawn text depends on the seed and on the request's place in the queue, and not on the batching.

    Raises:
        PeakwardError: no request, one of no prompt or that asks for no token or for more than the decoding
            makes, or one that its cache has no room for even when it is alone.
    """
    if not requests or min(each.max_new_tokens for each in requests) < 1:
        raise PeakwardError(
            "expected requests of at least one token each, got none: ask for some text"
        )
    if (most := max(each.max_new_tokens for each in requests)) > decoding.most_new_tokens:
        raise PeakwardError(
            f"expected requests of at most {decoding.most_new_tokens:,} new tokens, got one of {most:,}: "
            "make a decoding of more"
        )
    for each in requests:
        decoding.fits(each.ids, each.max_new_tokens)
    loop = _Loop(decoding, requests)
    loop.run(batching)
    wait(decoding.device)
    tokens = [text_of(loop.texts[number].tolist()) for number in range(len(requests))]
    rows_steps = len(decoding.left) * decoding.n_steps
    n_decoded = sum(len(each) - 1 for each in tokens)
    return Served(
        tokens=tokens,
        first_token_s=[loop.first[number].since(loop.began) for number in range(len(requests))],
        done_s=[loop.done[number].since(loop.began) for number in range(len(requests))],
        serve_s=max(moment.since(loop.began) for moment in loop.done.values()),
        n_steps=decoding.n_steps,
        row_use=n_decoded / rows_steps if rows_steps else None,
    )


class _Loop:
    """One pass through a queue."""

    def __init__(self, decoding: Decoding, requests: Sequence[Request]) -> None:
        self.decoding = decoding
        self.queue = deque(enumerate(requests))
        self.texts: dict[int, Tensor] = {}
        self.first: dict[int, Moment] = {}
        self.done: dict[int, Moment] = {}
        if max(each.max_new_tokens for each in requests) > 1:
            longest = max(len(each.ids) + each.max_new_tokens for each in requests)
            decoding.prepare(2, longest)
        self.began = Moment(decoding.device)

    def run(self, batching: Batching) -> None:
        """Serves until all texts have ended. The host looks at what a token has ended every so many
        steps; what a count ends it knows without looking."""
        decoding, looks, n_looked = self.decoding, Looks(self.decoding), 0
        while self.queue or any(number is not None for number in decoding.numbers):
            if batching == "continuous" or all(number is None for number in decoding.numbers):
                self._admit()
            # Before the next steps: the first token of a text may be all that was asked for.
            pairs = zip(decoding.numbers, decoding.left, strict=True)
            if counted := {number for number, n in pairs if number is not None and not n}:
                self._finish(counted)
                continue
            left = [each for each in decoding.left if each]
            until_free = min if batching == "continuous" and self.queue else max
            decoding.run(min(decoding.look_every, until_free(left)))
            if decoding.n_steps - n_looked >= decoding.look_every:
                self._finish(*looks.next())
                n_looked = decoding.n_steps

    def _admit(self) -> None:
        """Gives free rows the next requests, as long as there is room for them."""
        decoding = self.decoding
        free = [row for row, number in enumerate(decoding.numbers) if number is None]
        while free and self.queue:
            number, request = self.queue[0]
            if not decoding.fits(request.ids, request.max_new_tokens):
                break
            self.queue.popleft()
            decoding.admit(free.pop(0), request.ids, request.max_new_tokens, number)
            self.first[number] = Moment(decoding.device)

    def _finish(self, ended: Collection[int], moment: Moment | None = None) -> None:
        """Keeps the texts of these numbers and frees their rows."""
        for row, number in enumerate(self.decoding.numbers):
            if number is not None and number in ended:
                self.texts[number] = self.decoding.text(row)
                self.done[number] = moment or Moment(self.decoding.device)
                self.decoding.release(row)
