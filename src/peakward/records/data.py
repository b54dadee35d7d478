"""The source of a step's tokens when a loader reads real text while steps run."""

from typing import Literal

import msgspec

Tokenise = Literal["cached", "on-the-fly"]
"""`cached` tokenises once before the first step, into a file that is mapped into memory. `on-the-fly`
tokenises each sequence when it is requested, like a loader that keeps text."""
Sampler = Literal["per-rank", "same"]
"""`per-rank` deals an epoch's sequences out among the ranks. `same` lets every rank read all of them."""


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text or a tokenizer: a name that `peakward.lab.data` knows, or an absolute path."""

    name: str
    digest: str | None = None
    """A hash of the path's content. None for a name, because an installed package settles its content."""


class TextData(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Documents that are tokenised, packed end to end into sequences, and loaded while steps run.

    The sequences are those of rank 0 of `n_ranks`. The workload's seed shuffles them anew in every epoch.
    """

    text: Source
    tokenizer: Source = Source("bytes")
    tokenise: Tokenise = "cached"
    n_workers: int = 0
    """Processes that prepare batches ahead of time. 0: each batch is made on request, between steps."""
    pin_memory: bool = False
    """Batches lie in page-locked memory, from which a GPU copies without the CPU."""
    non_blocking: bool = False
    """The host continues while batches are copied to the device."""
    n_ranks: int = 1
    sampler: Sampler = "per-rank"
