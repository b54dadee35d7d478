"""Names, each held once."""

from collections.abc import Callable, Iterable

import numpy as np

from peakward.traces.readers.nsys.database import Export
from peakward.traces.table import Ints

UNNAMED = "(unnamed)"
"""Replaces a missing name, and one that the file does not hold."""


class Names:
    """Gives every name its position, in the order of first use."""

    def __init__(self) -> None:
        self._positions: dict[str, int] = {}

    def position(self, name: str) -> int:
        """The position of this name; a new name is added at the end."""
        return self._positions.setdefault(name, len(self._positions))

    def positions(self, names: Iterable[str]) -> Ints:
        """The position of each name."""
        return np.array([self.position(each) for each in names], np.int64)

    def all(self) -> tuple[str, ...]:
        """All names, by position."""
        return tuple(self._positions)


def positions_of_ids(
    export: Export, names: Names, ids: Ints, shown: Callable[[str], str] = str
) -> Ints:
    """Positions of the names behind ids in StringIds, after `shown` has formatted each."""
    unique, places = np.unique(ids, return_inverse=True)
    values = export.strings(unique.tolist())
    found = names.positions(shown(values.get(each, UNNAMED)) for each in unique.tolist())
    return found[places]
