"""The cost of feeding a case's steps from a loader."""

import msgspec


class LoaderWait(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The time that each timed step waited for its batches, in the order of the steps."""

    wait_s: tuple[float, ...]
    """The host's wait until the loader handed over the step's batches."""
    idle_s: tuple[float, ...] | None = None
    """The part of the wait in which the GPU had finished all earlier work; 0 where it was still busy. None on
    a CPU, which waits itself."""
    first_wait_s: float
    """The wait for the very first batches: workers start, and nothing is ready."""


class Feeding(LoaderWait, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The text that a loader read, and the time that each timed step spent on feeding."""

    copy_s: tuple[float, ...]
    """The host's time to copy the batches to the device. A blocking copy also waits for the device's earlier
    work."""
    text_bytes: int
    """UTF-8."""
    text_digest: str
    n_tokens: int
    """Tokens in the whole text, including the separator after each document."""
    vocab_size: int
    """The tokenizer's vocabulary; the model's may be larger."""
    n_sequences: int
    """Sequences in the whole text."""
    n_rank_sequences: int
    """Sequences that rank 0 reads in an epoch."""
    n_shared_sequences: int
    """Sequences that rank 0 reads in the first epoch and another rank reads too."""
