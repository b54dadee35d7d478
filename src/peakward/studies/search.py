"""The largest value that fits, found with few probes. Pure but for the probe it is given."""

from collections.abc import Callable

import msgspec

from peakward.records.measurement import Measurement

Probe = Callable[[int], Measurement | None]
"""Runs (or looks up) the case at a value; None where it was not run."""


class Bracket(msgspec.Struct, frozen=True, kw_only=True):
    """The largest value known to fit and the smallest known not to, with their measurements."""

    fits: int = 0
    """0: not even the smallest that was tried."""
    too_large: int | None = None
    """None: the upper bound fits, or the search ended early."""
    proofs: tuple[Measurement, ...] = ()
    """The measurements at `fits` and at `too_large`, as far as there are such."""
    stopped: str | None = None
    """Why the search ended before the bracket was tight: a probe's status other than ok and oom."""


def largest(probe: Probe, *, guess: int, granule: int, upper: int, tolerance: float) -> Bracket:
    """Bracket the largest multiple of `granule`, up to `upper`, whose probe ends `ok`.

    From the guess outwards in steps that double, then by halves, until the two ends are a granule
    or `tolerance` of the value apart. With a guess within the tolerance that takes two probes.
    """
    fits, too_large = 0, upper // granule + 1
    stride = max(1, round(tolerance * guess / granule))
    proofs: dict[int, Measurement] = {}
    at = min(max(1, guess // granule), upper // granule)
    stopped = None
    while True:
        found = probe(at * granule)
        if found is None or found.status not in ("ok", "oom"):
            stopped = "not run" if found is None else found.status
            break
        proofs[at] = found
        if found.status == "ok":
            fits = at
        else:
            too_large = at
        if too_large - fits <= max(1, int(tolerance * fits)):
            break
        if too_large > upper // granule:
            at = min(fits + stride, upper // granule)
            stride *= 2
        elif fits == 0:
            at = max(1, too_large - stride)
            stride *= 2
        else:
            at = (fits + too_large) // 2
    return Bracket(
        fits=fits * granule,
        too_large=too_large * granule if too_large in proofs else None,
        proofs=tuple(proofs[each] for each in (fits, too_large) if each in proofs),
        stopped=stopped,
    )


def linear_guess(points: list[tuple[float, float]], limit: float) -> float | None:
    """Where the line through the first and last of the (x, y) points reaches `limit`.

    None where there are not two points, or the line does not rise.
    """
    if len(points) < 2:
        return None
    (x0, y0), (x1, y1) = min(points), max(points)
    return x0 + (limit - y0) * (x1 - x0) / (y1 - y0) if y1 > y0 and x1 > x0 else None
