"""Where a step's tokens come from when they are read while steps run: real text, by a loader."""

from typing import Literal

import msgspec

Tokenise = Literal["cached", "on-the-fly"]
"""`cached`: once, before any step, in a file that is mapped into memory. `on-the-fly`: each sequence when
it is asked for, as a loader does that keeps text."""
Sampler = Literal["per-rank", "same"]
"""`per-rank` deals an epoch's sequences out among the ranks; with `same` every rank reads all of them."""


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text or a tokenizer: a name that `peakward.lab.data` knows, or an absolute path."""

    name: str
    digest: str | None = None
    """Of what the path holds. None for a name: an installed package settles its content."""


class TextData(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Documents, tokenised, packed end to end into sequences, and loaded while steps run.

    Sequences are those of rank 0 of `n_ranks`, shuffled anew in every epoch by the workload's seed.
    """

    text: Source
    tokenizer: Source = Source("bytes")
    tokenise: Tokenise = "cached"
    n_workers: int = 0
    """Processes that make batches ahead; 0 makes each where it is asked for, between steps."""
    pin_memory: bool = False
    """Batches lie in page-locked memory, from which a GPU copies without the CPU."""
    non_blocking: bool = False
    """The host goes on while batches are copied to the device."""
    n_ranks: int = 1
    sampler: Sampler = "per-rank"
