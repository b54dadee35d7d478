"""How a step says which phase begins."""

from collections.abc import Callable

from peakward.records.measurement import Phase

Mark = Callable[[Phase | None], None]
"""Called with a phase as it begins, and with None as the last one ends."""


def unmarked(_phase: Phase | None) -> None:
    """For a step whose phases nobody times."""
