"""How time and memory grow with the length: exponents of power laws."""

from collections.abc import Sequence

import msgspec

from peakward.records.measurement import Interval, Measurement
from peakward.studies.attention.grid import Cell, curves
from peakward.studies.attention_arms import Attempt
from peakward.studies.power_law import exponent, exponent_interval
from peakward.studies.readings import time


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """Exponents of one arm over the lengths at which it ran; None where fewer than three did."""

    curve: tuple[Cell, ...]
    """The shortest length first."""
    forward: Interval | None
    backward: Interval | None
    held: float | None
    sources: tuple[Measurement, ...]

    @property
    def last(self) -> Cell:
        """The longest of the curve."""
        return self.curve[-1]

    @property
    def backward_at(self) -> dict[int, Measurement]:
        """By length, where it has a time."""
        found = {cell.seq_len: cell.backward.measurement for cell in self.curve}
        return {seq_len: each for seq_len, each in found.items() if each is not None and time(each)}


def read(cells: Sequence[Cell]) -> tuple[Growth, ...]:
    """Of every curve of which anything is known."""
    found = (_growth(curve) for curve in curves(cells))
    return tuple(each for each in found if each.forward or each.backward or each.held)


def _growth(curve: tuple[Cell, ...]) -> Growth:
    held = [(cell.seq_len, cell.held_bytes) for cell in curve if cell.held_bytes]
    attempts = [attempt for cell in curve for attempt in (cell.forward, cell.backward)]
    return Growth(
        curve=curve,
        forward=_of_times([cell.forward for cell in curve]),
        backward=_of_times([cell.backward for cell in curve]),
        held=exponent([seq_len for seq_len, _ in held], [n_bytes for _, n_bytes in held]),
        sources=tuple(
            each.measurement for each in attempts if each.measurement and each.status == "ok"
        ),
    )


def _of_times(attempts: Sequence[Attempt]) -> Interval | None:
    known = [
        (each.case.seq_len, found)
        for each in attempts
        if (found := time(each.measurement)) is not None
    ]
    return exponent_interval([seq_len for seq_len, _ in known], [found for _, found in known])
