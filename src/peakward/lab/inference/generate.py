"""Generation: prompts of any lengths to tokens, one a step and row, with the times of both parts."""

from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor, nn

from peakward.lab.inference.sampling import chosen
from peakward.lab.inference.sequences import SequenceCache
from peakward.records.generation import Sampling

LOOK_EVERY = 16
"""Steps between two looks at whether all rows have ended. After the end of the last row at most two such
spans are computed in vain."""


class Generated(NamedTuple):
    """The new tokens of each prompt, and how long they took."""

    tokens: list[list[int]]
    """Up to the token that ended the text, itself included."""
    prefill_s: float
    """Until the first token of every prompt was there."""
    decode_s: float
    """From there to the end."""
    n_steps: int
    """Passes after the first tokens; each makes a token of every prompt, whether it has ended or not."""
    positions: float
    """The positions that a step attended to, over all prompts: the mean over steps."""
    n_guessed: int = 0
    """Tokens that were guessed (`speculation`)."""
    n_kept: int = 0
    """Guessed tokens that the model would have chosen: each is a token more than steps make."""


@torch.inference_mode()
def generate(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    cache: SequenceCache,
    *,
    by: Sampling,
    max_new_tokens: int,
    ends: frozenset[int] = frozenset(),
) -> Generated:
    """Fills the rows of an empty cache with the prompts, and makes new tokens for all of them.

    Equal seeds give equal tokens for equal prompts in the same order.

    Args:
        prompts: one for each row of the cache.
        ends: the tokens that end a text.

    Raises:
        PeakwardError: an empty prompt, or a cache that is too small.
    """
    device = torch.device(cache.device)
    generator = torch.Generator(device).manual_seed(by.seed)
    last = torch.tensor(sorted(ends), dtype=torch.int64, device=device)
    out = torch.zeros((len(prompts), max_new_tokens), dtype=torch.int64, device=device)
    began = perf_counter()
    logits = torch.cat([cache.prefill(model, row, ids) for row, ids in enumerate(prompts)])
    out[:, 0] = chosen(logits, by, generator)
    wait(device)
    first = perf_counter()
    ended = torch.isin(out[:, 0], last)
    watched, n_steps, positions = _Ended(device), 0, 0
    while n_steps < max_new_tokens - 1:
        if n_steps % LOOK_EVERY == 0 and watched.all(ended):
            break
        logits = cache.step(model, out[:, n_steps : n_steps + 1])
        n_steps += 1
        positions += sum(cache.reach(row) for row in range(len(prompts)))
        out[:, n_steps] = chosen(logits, by, generator)
        ended = ended | torch.isin(out[:, n_steps], last)
    wait(device)
    done = perf_counter()
    return Generated(
        tokens=[up_to_end(row, ends) for row in out[:, : n_steps + 1].tolist()],
        prefill_s=first - began,
        decode_s=done - first,
        n_steps=n_steps,
        positions=positions / max(1, n_steps),
    )


class _Ended:
    """Whether all rows have ended. On a GPU it tells what the device had answered by now to an earlier
    question, so that the host runs on ahead of it."""

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self.answer = torch.zeros((), dtype=torch.bool, pin_memory=self.on_gpu)
        self.asked: torch.cuda.Event | None = None

    def all(self, ended: Tensor) -> bool:
        if not self.on_gpu:
            return bool(ended.all())
        if self.asked is not None:
            if not self.asked.query():
                return False
            if self.answer.item():
                return True
        self.answer.copy_(ended.all(), non_blocking=True)
        self.asked = torch.cuda.Event()
        self.asked.record()
        return False


def wait(device: torch.device) -> None:
    """Waits for what a GPU still has to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def up_to_end(tokens: list[int], ends: frozenset[int]) -> list[int]:
    """The tokens up to the first of `ends`, itself included."""
    last = next((at for at, token in enumerate(tokens) if token in ends), len(tokens))
    return tokens[: last + 1]
