"""Errors of the grid's predictions: median, nine in ten, what the intervals hold, peaks and verdicts."""

from collections.abc import Callable, Iterable
from statistics import median

import msgspec

from module_grid.cases import GridCase
from module_grid.measured import Measured
from module_grid.predicted import Told

NEAR = 0.03
"""Verdicts on limits so near to the bytes that were reserved are left aside."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One case: predictions first, then what was measured."""

    case: GridCase
    told: tuple[Told, ...]
    refused: str | None
    """Why nothing is predicted."""
    measured: Measured | None = None
    failed: str | None = None


def lines(outcomes: Iterable[Outcome]) -> list[str]:
    """A line for all cases of each source, and for each value of each property."""
    known = list(outcomes)
    ran = [each for each in known if each.measured is not None]
    n_refused = sum(not each.told for each in ran)
    said = [f"{len(ran)} cases measured, {n_refused} of them not predicted, {len(known)} tried"]
    properties: dict[str, Callable[[GridCase], str]] = {
        "": lambda _case: "all",
        "architecture": lambda case: case.kind,
        "pass": lambda case: case.pass_,
        "precision": lambda case: case.precision,
        "compiled": lambda case: case.compiled,
    }
    for source in sorted({told.source for each in ran for told in each.told}):
        for title, of in properties.items():
            for value in sorted({of(each.case) for each in ran}):
                group = [each for each in ran if of(each.case) == value]
                said.append(f"{source:11} {title:13} {value:11} " + _figures(group, source))
    return said


def _figures(group: list[Outcome], source: str) -> str:
    pairs = [
        (told, each.measured)
        for each in group
        for told in each.told
        if told.source == source and each.measured is not None
    ]
    if not pairs:
        return "nothing predicted"
    errors = [told.step_s / found.step_s - 1 for told, found in pairs]
    held = [told.low_s <= found.step_s <= told.high_s for told, found in pairs]
    figures = (
        f"{len(pairs):3} cases: time {_spread(errors)}, intervals hold {sum(held) / len(held):.0%}"
    )
    peaks = [told.peak_bytes / found.peak_bytes - 1 for told, found in pairs if found.peak_bytes]
    if not peaks:
        return figures
    verdicts = [right for told, found in pairs for right in _verdicts(told, found)]
    return f"{figures}; peak {_spread(peaks)}, verdicts {sum(verdicts)} of {len(verdicts)}"


def _spread(errors: list[float]) -> str:
    sizes = sorted(map(abs, errors))
    nine_in_ten = sizes[min(len(sizes) - 1, round(0.9 * (len(sizes) - 1)))]
    return (
        f"{median(sizes):.1%} (p90 {nine_in_ten:.1%}, median of the signed {median(errors):+.1%})"
    )


def _verdicts(told: Told, found: Measured) -> list[bool]:
    assert found.reserved_bytes is not None
    clear = [limit for limit in found.fits if abs(found.reserved_bytes / limit - 1) > NEAR]
    return [told.fits[limit] == found.fits[limit] for limit in clear if limit in told.fits]
