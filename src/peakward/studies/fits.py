"""Whether a case fits a memory limit: measured under it, or told by a measurement that settles it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any, Literal

import msgspec

from peakward.records.case import ModelCase, OperatorCase
from peakward.records.measurement import Measurement, Protocol
from peakward.records.study import Conclusion
from peakward.report.format import format_cell
from peakward.studies.cases import under_limit
from peakward.studies.claims import Sentence
from peakward.studies.engine import Point, View
from peakward.studies.readings import Planned, Readings
from peakward.studies.recorder import Recorder
from peakward.studies.setting import Setting

AnyPoint = Point[ModelCase] | Point[OperatorCase]
Curves = Callable[[Setting], Iterable[Sequence[AnyPoint]]]
"""Points of which each needs more memory than the one before."""
MIB, GIB = 2**20, 2**30
LIMITS_BYTES = (24 * GIB, 40 * GIB, 80 * GIB)
"""The memory of the cards that a user may have in mind (docs/scope.md)."""
SMALL_LIMITS_BYTES = (496 * MIB, 544 * MIB, 640 * MIB)
"""A CPU's scaled-down ones: to train at 2 × 256, `tiny` takes 560 to 600 MiB in fp32, 496 to 512 in
bf16 and 464 to 496 with checkpointing too, of which torch itself is 220 (2 cores, torch 2.13)."""
SAME_CARD = 1.02
"""An "80 GiB" card reports 79.6 GiB: a limit this little above the device's memory means it."""


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a case ran under a limit, and the measurement that says so."""

    verdict: Literal["fits", "oom", "timeout", "crashed", "invalid"]
    proof: Measurement


def fit_protocol(setting: Setting) -> Protocol:
    """Two steps: the first makes gradients and moments, the second runs beside them.

    On a CPU the limit counts the whole process, so what earlier cases left in it would tell.
    """
    fresh = setting.device == "cpu"
    return setting.protocol(
        warmup_steps=1, min_steps=1, max_steps=1, phases=False, fresh_process=fresh
    )


def probe(case: ModelCase | OperatorCase, limit_bytes: int | None, setting: Setting) -> Planned:
    """The case under the limit, as briefly as tells whether it fits."""
    return under_limit(case, limit_bytes), fit_protocol(setting)


def limits(setting: Setting, small: tuple[int, ...] = SMALL_LIMITS_BYTES) -> tuple[int, ...]:
    """The limits that this device's memory can tell apart, ascending."""
    most = setting.environment.device_memory_bytes * SAME_CARD
    return tuple(sorted(limit for limit in set(_asked(setting, small)) if limit <= most))


def _asked(setting: Setting, small: tuple[int, ...]) -> tuple[int, ...]:
    """The user's limits, or those of common cards, or on a CPU in the small scope `small`."""
    scaled_down = setting.device == "cpu" and setting.scope.name == "small"
    return setting.scope.limits_bytes or (small if scaled_down else LIMITS_BYTES)


def limit_notes(setting: Setting, small: tuple[int, ...] = SMALL_LIMITS_BYTES) -> tuple[str, ...]:
    """Which limits were left out, and which stand for the device's own memory."""
    memory, kept = setting.environment.device_memory_bytes, limits(setting, small)
    notes = []
    if dropped := sorted(set(_asked(setting, small)) - set(kept)):
        names = ", ".join(f"{limit / GIB:.3g} GiB" for limit in dropped)
        notes.append(f"Not tested: {names}, more than this device's {memory / GIB:.3g} GiB.")
    if own := [limit for limit in kept if limit > memory]:
        notes.append(
            f"{own[0] / GIB:.3g} GiB stands for all of this device's {memory / GIB:.3g} GiB."
        )
    return tuple(notes)


def fit(
    point: AnyPoint,
    limit_bytes: int,
    readings: Readings,
    setting: Setting,
    *,
    small: tuple[int, ...] = SMALL_LIMITS_BYTES,
) -> Fit | None:
    """Whether the point's case fits the limit, or None where nothing measured so far settles it.

    A measurement under the limit says so itself. Otherwise: what fits a smaller limit fits, what
    ran out under a larger one or without any does not, and on CUDA what reserved less than the
    limit when it was free fits.
    """
    at = {each: readings.find(probe(point.case, each, setting)) for each in limits(setting, small)}
    own, alone = at.get(limit_bytes), readings.find(point.planned)
    if own is not None:
        return _verdict(own)
    for each, found in at.items():
        if found is not None and each < limit_bytes and found.status == "ok":
            return Fit(verdict="fits", proof=found)
        if found is not None and each > limit_bytes and found.status == "oom":
            return Fit(verdict="oom", proof=found)
    if alone is None:
        return None
    if alone.status == "oom" or limit_bytes > setting.environment.device_memory_bytes:
        return _verdict(alone)
    needed = _needed_bytes(alone)
    return Fit(verdict="fits", proof=alone) if needed and needed <= limit_bytes else None


def search(
    curves: Curves,
    small: tuple[int, ...] = SMALL_LIMITS_BYTES,
) -> Callable[[Recorder, Setting], None]:
    """A study's search: along each curve, from what needs least memory on, runs under each limit what the
    free runs leave open, up to the first that does not fit."""

    def run(lab: Recorder, setting: Setting) -> None:
        for curve, limit in product(curves(setting), limits(setting, small)):
            for point in curve:
                if fit(point, limit, lab.readings, setting, small=small) is None:
                    lab.measure(probe(point.case, limit, setting))
                found = fit(point, limit, lab.readings, setting, small=small)
                if found is None or found.verdict != "fits":
                    break

    return run


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """How far along a curve the cases fit a limit."""

    first: AnyPoint
    limit_bytes: int
    fits: tuple[AnyPoint, Fit] | None
    """The last that fits, and what shows it; None where none does."""
    fails: tuple[AnyPoint, Fit] | None
    """The first that does not; None where all do."""


def reaches(
    view: View[Any], curves: Curves, small: tuple[int, ...] = SMALL_LIMITS_BYTES
) -> Iterator[Reach]:
    """Every curve under every limit, as far as it was searched."""
    for curve, limit in product(curves(view.setting), limits(view.setting, small)):
        known: list[tuple[AnyPoint, Fit]] = []
        for point in curve:
            found = fit(point, limit, view.readings, view.setting, small=small)
            if found is not None:
                known.append((point, found))
            if found is None or found.verdict != "fits":
                break
        ran = [each for each in known if each[1].verdict == "fits"]
        if known:
            yield Reach(
                first=curve[0],
                limit_bytes=limit,
                fits=ran[-1] if ran else None,
                fails=known[-1] if len(ran) < len(known) else None,
            )


def ends(
    found: Iterable[Reach], what: Callable[[Any], str], x: str, get: Callable[[Any], int]
) -> Iterator[Conclusion]:
    """Where each curve runs out of memory, in what grows along it."""
    for reach in found:
        if reach.fails is None or reach.fails[1].verdict != "oom":
            continue
        told, (point, failure) = Sentence(), reach.fails
        fails = told(f"{x} that does not fit", get(point), "count", failure.proof)
        text = f"Under {format_cell(reach.limit_bytes, 'bytes')}, {what(reach.first)} "
        if reach.fits is None:
            text += f"runs out of memory at {x} {fails} already"
        else:
            last, proof = reach.fits
            fits = told(f"largest {x} that fits", get(last), "count", proof.proof)
            text += f"runs up to {x} {fits} and is out of memory at {fails}"
        yield from told.end(f"{text}.")


def _verdict(measurement: Measurement) -> Fit:
    verdict = "fits" if measurement.status == "ok" else measurement.status
    return Fit(verdict=verdict, proof=measurement)


def _needed_bytes(measurement: Measurement) -> int | None:
    """Reserved bytes and the context's; None on a CPU, whose limit counts what its peak does not."""
    memory = measurement.memory
    if measurement.status != "ok" or memory is None or memory.peak_reserved_bytes is None:
        return None
    return memory.peak_reserved_bytes + (memory.context_bytes or 0)
