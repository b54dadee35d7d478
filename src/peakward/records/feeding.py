"""What it took to feed the steps of a case from a loader."""

import msgspec


class LoaderWait(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The time that each timed step waited for its batches, in their order."""

    wait_s: tuple[float, ...]
    """Of the host, until the loader handed over the step's batches."""
    idle_s: tuple[float, ...] | None = None
    """Of a GPU that had finished its earlier work, while the host waited for batches; 0 where it was
    still at work. None on a CPU, which waits itself."""
    first_wait_s: float
    """For the first batches of all: workers start, and nothing is ready."""


class Feeding(LoaderWait, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a loader of text read, and the time that feeding took of each timed step."""

    copy_s: tuple[float, ...]
    """Of the host, in copying them to the device: where a copy blocks, the wait for the device's earlier
    work too."""
    text_bytes: int
    """UTF-8."""
    text_digest: str
    n_tokens: int
    """Of the whole text, one after each document included."""
    vocab_size: int
    """Of the tokenizer; the model's may be larger."""
    n_sequences: int
    """Of the whole text."""
    n_rank_sequences: int
    """That rank 0 reads in an epoch."""
    n_shared_sequences: int
    """Of these in the first epoch, those that another rank reads too."""
