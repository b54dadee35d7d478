"""Which rates are so far below the roof that they are not the kernels'."""

from collections.abc import Sequence

from peakward.studies.flash.grid import Cell

LITTLE = 0.05
"""Of the roof. One head of 4,096 tokens, bf16, head dim 64, forward, is 3 µs of products on an H100, where
the calls took 41 µs (sdpa) to 405 µs (flash-hopper) with its host's launches (2026-11-22)."""


def launches(cells: Sequence[Cell]) -> tuple[str, ...]:
    """That a GPU waits for its host in them, of those that had no more to do; nothing where all had."""
    known = [cell for cell in cells if cell.roof_share is not None]
    on_gpu = [cell for cell in known if cell.attempt.case.device == "cuda"]
    few = [cell for cell in on_gpu if (cell.roof_share or 0.0) < LITTLE]
    if not few:
        return ()
    longest = max(cell.seq_len for cell in few)
    return (
        f"{len(few)} of {len(known)} rates, of lengths up to {longest:,}, are below 5% of the roof: one "
        "head of so little work is done before the host has launched the next, and what is compared is "
        "launches, of which those from Python (Peakward's kernels, flex) cost several times torch's. "
        "Longer sequences, and more heads, compare kernels.",
    )
