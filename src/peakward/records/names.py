"""Looks a name up, or suggests similar names."""

import difflib
from collections.abc import Mapping
from typing import TypeVar

from peakward.records.errors import PeakwardError
from peakward.records.printable import LONGEST_QUOTE, quoted

T = TypeVar("T")


def look_up(kind: str, name: str, rows: Mapping[str, T]) -> T:
    """The row of that name. Capitals must match, but the suggestions ignore them.

    Args:
        kind: what the rows are, with its article, for the message: "a model".

    Raises:
        PeakwardError: no such row; names the nearest ones, or all where none is near or there are two.
    """
    if name in rows:
        return rows[name]
    by_lower = {each.lower(): each for each in rows}
    near = difflib.get_close_matches(name[:LONGEST_QUOTE].lower(), list(by_lower), n=3, cutoff=0.4)
    if not near or len(rows) <= 2:
        raise PeakwardError(f"expected {kind}, got {quoted(name)}: there are {', '.join(rows)}")
    raise PeakwardError(
        f"expected {kind}, got {quoted(name)}: perhaps {', '.join(by_lower[each] for each in near)}"
    )
