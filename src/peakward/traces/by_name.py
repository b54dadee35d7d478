"""Facts that follow from a row's name, computed once for each name."""

from collections.abc import Callable

import numpy as np

from peakward.traces.table import Codes, Indices


def by_name(names: tuple[str, ...], rows: Indices, code: Callable[[str], int]) -> Codes:
    """The code (0 to 255) of the name of each row; `rows` are positions in `names`."""
    of_name = np.zeros(len(names), dtype=np.uint8)
    for at in np.flatnonzero(np.bincount(rows, minlength=len(names))):
        of_name[at] = code(names[at])
    return of_name[rows]
