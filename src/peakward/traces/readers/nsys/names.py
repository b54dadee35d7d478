"""Names, each held once."""

from collections.abc import Callable, Iterable

import numpy as np

from peakward.traces.readers.nsys.database import Export
from peakward.traces.table import Ints

UNNAMED = "(unnamed)"
"""What has no name, or one that the file does not hold."""


class Names:
    """Gives every name its position, in the order in which they come."""

    def __init__(self) -> None:
        self._positions: dict[str, int] = {}

    def position(self, name: str) -> int:
        """Of this name, a new one at the end."""
        return self._positions.setdefault(name, len(self._positions))

    def positions(self, names: Iterable[str]) -> Ints:
        """Of each."""
        return np.array([self.position(each) for each in names], np.int64)

    def all(self) -> tuple[str, ...]:
        """By position."""
        return tuple(self._positions)


def positions_of_ids(
    export: Export, names: Names, ids: Ints, shown: Callable[[str], str] = str
) -> Ints:
    """Positions of the names behind ids in StringIds, each as `shown` has it."""
    unique, places = np.unique(ids, return_inverse=True)
    values = export.strings(unique.tolist())
    found = names.positions(shown(values.get(each, UNNAMED)) for each in unique.tolist())
    return found[places]
