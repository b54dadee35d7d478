"""Up to which length naive attention runs forward and backward under a memory limit."""

from collections.abc import Iterator

import msgspec

from peakward.records.case import OperatorCase
from peakward.studies.attention.grid import Cell, curves
from peakward.studies.attention.grid import read as read_cells
from peakward.studies.attention_arms import NAIVE
from peakward.studies.fits import Fit, asked_limits, fit, limit_notes, probe, within_device
from peakward.studies.readings import Readings
from peakward.studies.recorder import Recorder
from peakward.studies.setting import Setting

SMALL_LIMITS_BYTES = (384 * 2**20,)
"""Of the whole process on a CPU, of which torch takes up to 300 MiB: 8 × 512² in fp32 takes 8 MiB a
matrix and fits, 8 × 1024² takes 32 and does not."""


class End(msgspec.Struct, frozen=True, kw_only=True):
    """One curve of naive attention under a limit."""

    first: Cell
    limit_bytes: int
    fits: int | None
    """The longest length that ran; None where none did."""
    proof: Fit | None
    fails: int | None
    """The shortest length that did not; None where all did."""
    failure: Fit | None


def gather(lab: Recorder, setting: Setting) -> None:
    """Runs under each limit, from short to long, what the free runs leave open, up to the first
    failure."""
    for curve, limit in _searched(lab.readings, setting):
        for cell in curve:
            found = _fit(cell, limit, lab.readings, setting)
            if found is None:
                lab.measure(probe(cell.backward.case, limit, setting))
                found = _fit(cell, limit, lab.readings, setting)
            if found is None or found.verdict != "fits":
                break


def read(readings: Readings, setting: Setting) -> tuple[End, ...]:
    """Of every curve and limit as far as it was searched."""
    return tuple(
        end
        for curve, limit in _searched(readings, setting)
        if (end := _end(curve, limit, readings, setting)).fits or end.fails
    )


def notes(setting: Setting) -> tuple[str, ...]:
    """Which limits this device cannot tell apart."""
    return limit_notes(_asked(setting), setting)


def _searched(readings: Readings, setting: Setting) -> Iterator[tuple[tuple[Cell, ...], int]]:
    for curve in curves(read_cells(readings, setting)):
        if curve[0].arm == NAIVE:
            for limit in _limits(setting):
                yield curve, limit


def _asked(setting: Setting) -> tuple[int, ...]:
    return asked_limits(setting, SMALL_LIMITS_BYTES)


def _limits(setting: Setting) -> tuple[int, ...]:
    return within_device(_asked(setting), setting)


def _fit(cell: Cell, limit: int, readings: Readings, setting: Setting) -> Fit | None:
    case: OperatorCase = cell.backward.case
    return fit(
        case,
        limit,
        limits_bytes=_limits(setting),
        free=(case, setting.protocol(phases=False)),
        readings=readings,
        setting=setting,
    )


def _end(curve: tuple[Cell, ...], limit: int, readings: Readings, setting: Setting) -> End:
    last: tuple[int, Fit] | None = None
    for cell in curve:
        found = _fit(cell, limit, readings, setting)
        if found is None:
            break
        if found.verdict != "fits":
            return _ended(curve[0], limit, last, (cell.seq_len, found))
        last = (cell.seq_len, found)
    return _ended(curve[0], limit, last, None)


def _ended(
    first: Cell, limit: int, last: tuple[int, Fit] | None, failed: tuple[int, Fit] | None
) -> End:
    return End(
        first=first,
        limit_bytes=limit,
        fits=last[0] if last else None,
        proof=last[1] if last else None,
        fails=failed[0] if failed else None,
        failure=failed[1] if failed else None,
    )
