"""Refuses a configuration whose numbers no model can have, before anything is built from them.

transformers builds as it is told: a list entry and a module for each of 10 million layers, a name for
each of 100 million labels. Every integer of a configuration is checked, by what its name counts.
"""

import re
from collections.abc import Iterator
from typing import Final

from peakward.models.presets import LARGEST
from peakward.records.errors import PeakwardError

MOST_LAYERS: Final = LARGEST["n_layers"]
MOST_COUNTED: Final = 2**15
"""The largest number of experts, heads, labels or codebooks, each of which may be an object of its own.
It is twice the largest default of transformers' 188 causal language models."""
MOST: Final = 2**25
"""The largest other size, such as a vocabulary or a context. The largest default is 20 million."""

_LAYERS = re.compile(r"layers?$|blocks?$|depth$")
_COUNTS = re.compile(r"^(num|n|number_of)_(?!(positions?|position_embeddings|embd|ctx|inner)$)")
_PER_LAYER = re.compile(r"layer|block|pattern")
_NO_SIZE = re.compile(r"theta|seed|_(id|ids|index)$")


def refuse_impossible_sizes(config: dict[str, object], name: str) -> None:
    """Refuses a configuration from which no model could be built in reasonable time.

    Raises:
        PeakwardError: An integer or a list is larger than any published model's; the error names the
        first.
    """
    for key, size, most in _sizes(config):
        if size > most:
            # Python refuses to write out a number of more than 4300 digits.
            got = f"{size:,}" if size < 10**18 else "10**18 or more"
            raise PeakwardError(
                f"expected {key[:80]!r} of {name} to be at most {most:,}, got {got}: no published model "
                "is so large"
            )


def _sizes(config: dict[str, object]) -> Iterator[tuple[str, int, int]]:
    """Each integer and each list, at any depth, with its key and its limit."""
    left: list[tuple[str, object]] = list(config.items())
    while left:
        key, value = left.pop()
        if isinstance(value, dict):
            left += [(str(inner), each) for inner, each in value.items()]
        elif isinstance(value, list):
            yield key, len(value), MOST_LAYERS if _PER_LAYER.search(key) else MOST_COUNTED
            left += [(key, each) for each in value]
        elif isinstance(value, str) and _PER_LAYER.search(key):
            yield key, len(value), MOST_LAYERS
        elif isinstance(value, int) and not isinstance(value, bool) and not _NO_SIZE.search(key):
            yield key, value, _most(key)


def _most(key: str) -> int:
    if _LAYERS.search(key):
        return MOST_LAYERS
    return MOST_COUNTED if _COUNTS.search(key) else MOST
