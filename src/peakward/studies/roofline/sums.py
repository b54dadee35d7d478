"""Sums over the places of a step: its time in operators, and their least under the roof."""

from typing import Literal

from peakward.studies.roofline.cells import Cell
from peakward.studies.roofline.places import Place

NS = 1e-9
LEAST_SHARE = 0.01
"""Of the measured time, from which on a kind of operators is shown where room is short."""


def work_s(cell: Cell) -> float | None:
    """Profiled work of a step."""
    if cell.profile is None:
        return None
    total_ns = sum(each.total_ns for each in cell.profile.profile.categories)
    return total_ns * NS / cell.profile.n_steps


def placed_s(cell: Cell) -> float | None:
    """Of it, what has a place with a roof; None where nothing has."""
    return sum(measured for measured, floor in _times(cell) if floor is not None) or None


def floor_s(cell: Cell) -> float | None:
    """The least time of what is in `placed_s`."""
    return sum(floor for _, floor in _times(cell) if floor is not None) or None


def side_s(cell: Cell, side: Literal["compute", "memory"]) -> float | None:
    """Measured time of the operators on one side of the ridge."""
    if placed_s(cell) is None:
        return None
    return sum(each.measured_s or 0.0 for each in cell.places if each.bound == side)


def _times(cell: Cell) -> list[tuple[float, float | None]]:
    return [(each.measured_s, each.floor_s) for each in cell.places if each.measured_s is not None]


def notable(cell: Cell) -> tuple[Place, ...]:
    """The places that took at least `LEAST_SHARE` of what was placed, the longest first."""
    least_s = LEAST_SHARE * sum(each.measured_s or 0.0 for each in cell.places)
    return tuple(
        each for each in cell.places if each.measured_s is not None and each.measured_s >= least_s
    )


def moved_bytes(cell: Cell) -> int:
    """Of a step."""
    return sum(each.bytes for each in cell.places)


def beside_layers_bytes(cell: Cell) -> int:
    """Of all but the linear layers."""
    return sum(each.bytes for each in cell.places if not each.is_layer)


def beside_layers_s(cell: Cell) -> float | None:
    """Measured time of all but the linear layers; None where none was measured."""
    times = [each.measured_s for each in cell.places if not each.is_layer]
    return sum(each for each in times if each is not None) or None
