"""Which times are mostly a GPU's wait for its host: those compare launches of this host, not kernels."""

from collections.abc import Iterator, Sequence

from peakward.records.case import OperatorCase
from peakward.records.study import Conclusion
from peakward.studies.flash.grid import Cell
from peakward.studies.parts import evidence, say
from peakward.studies.readings import median_s

MOSTLY = 0.5
"""Host's share of a time, from here on the cell is called bound by its host. In one head of 4,096 tokens,
bf16, head dim 64, forward, 3 µs are products on an H100; calls took 41 µs (sdpa) to 405 µs (flash-hopper) of
its host."""
PARTLY, LITTLE = 0.25, 0.05
"""So is one with this share, or whose share is not known, that does not reach so much of the roof: launches
vary too much from case to case for the share alone (1.27 ms and 0.61 ms of one call on one host)."""


def host_bound(cells: Sequence[Cell]) -> frozenset[OperatorCase]:
    """The cases whose time is mostly their host's."""
    return frozenset(cell.attempt.case for cell in _bound(cells))


def said(cells: Sequence[Cell]) -> tuple[Conclusion, ...]:
    """How many there are, and by which sign; nothing where there are none, as on a CPU."""
    bound, timed = _bound(cells), [cell for curve in _curves(cells) for cell in curve]
    if not bound:
        return ()
    behind = [each.attempt.measurement for each in bound]
    return (
        say(
            "In {n} of {all} times, of lengths up to {longest}, the GPU mostly waits for its host: they are "
            "launches of this host, which differ from host to host, and no sentence here compares them.",
            n=evidence("times of the host", len(bound), "count", *behind),
            all=evidence(
                "times", len(timed), "count", *(cell.attempt.measurement for cell in timed)
            ),
            longest=evidence("length", max(each.seq_len for each in bound), "count", *behind),
        ),
    )


NOTE = (
    "The host's share of a time on a GPU is what the same call takes at the shortest length beyond its "
    "work, over it. A time is the host's where that is more than half, or more than a quarter while the rate "
    "is below 5% of the roof; of a call that was timed at one length alone the rate tells."
)


def _bound(cells: Sequence[Cell]) -> list[Cell]:
    return [
        cell for curve in _curves(cells) for cell, share in _shares(curve) if _is_bound(cell, share)
    ]


def _is_bound(cell: Cell, share: float | None) -> bool:
    slow = cell.roof_share is not None and cell.roof_share < LITTLE
    return slow if share is None else share > MOSTLY or (slow and share > PARTLY)


def _curves(cells: Sequence[Cell]) -> tuple[tuple[Cell, ...], ...]:
    """By arm, type, head dim and pass, what a GPU has a time of, the shortest first."""
    found: dict[tuple[object, ...], list[Cell]] = {}
    for cell in sorted(cells, key=lambda each: each.seq_len):
        if cell.attempt.case.device == "cuda" and median_s(cell.attempt.measurement) is not None:
            key = (cell.arm.name, cell.precision, cell.head_dim, cell.pass_)
            found.setdefault(key, []).append(cell)
    return tuple(map(tuple, found.values()))


def _shares(curve: Sequence[Cell]) -> Iterator[tuple[Cell, float | None]]:
    """Each cell with the host's share of its time: what the shortest takes beyond its work, over it. None
    of a call that was timed at one length.

    A host launches a call in the same time whatever its length; the work of the shortest is at most what
    its FLOPs take at the rate of the longest.
    """
    shortest, longest = curve[0], curve[-1]
    work_s = _median_s(longest) * shortest.flops / longest.flops
    host_s = max(0.0, _median_s(shortest) - work_s)
    for cell in curve:
        yield cell, min(1.0, host_s / _median_s(cell)) if len(curve) > 1 else None


def _median_s(cell: Cell) -> float:
    found = median_s(cell.attempt.measurement)
    assert found is not None
    return found
