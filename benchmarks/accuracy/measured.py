"""The stored measurements, one figure a case."""

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import NamedTuple

from accuracy.records import Merged
from peakward.hardware.devices import match
from peakward.records import codec
from peakward.records.case import Case, ModelCase
from peakward.records.measurement import Environment, Measurement, Verdict
from peakward.records.study import Study
from peakward.stats.validity import MIN_STEPS
from stored_results import STUDIES, index

BEST_FIRST: tuple[Verdict, ...] = ("stable", "unstable", "throttled")
FP8_SINCE = datetime.fromisoformat("2026-11-28T08:36:59+00:00")
"""When fp8's kernels came to be those of today, which cast a matrix once, both ways, by delayed scales.

Before, torch's operators found a tensor's largest magnitude, divided and cast: a train step of `small`
4 × 1024 had 3,862 launches and 53 ms of the device (`2026-11-27-h200-study-precision`), where today's is
predicted to have 1,456 and 32. No study of today's is stored yet."""


class Stored(NamedTuple):
    """A measurement on a GPU, and the file it lies in."""

    file: str
    measurement: Measurement


def studies(folder: Path) -> dict[str, Study]:
    """Every study there, by the name of its file, the oldest first."""
    return {
        each.path().name: codec.from_json(each.read(), Study)
        for each in sorted(index(folder).of(*STUDIES), key=lambda each: each.name)
    }


def stored(found: dict[str, Study], device: str) -> list[Stored]:
    """All measurements on the catalogued GPU of that key, whatever became of them."""
    return [
        Stored(file, each)
        for file, study in found.items()
        for each in study.measurements
        if each.case.device == "cuda" and device_key(each.environment) == device
    ]


def is_of_former_kernels(case: Case, started_at: str) -> bool:
    """Whether what was measured then ran kernels that the code no longer has, so that nothing predicts it."""
    is_fp8 = isinstance(case, ModelCase) and case.configuration.precision == "fp8"
    return is_fp8 and datetime.fromisoformat(started_at) < FP8_SINCE


def device_key(environment: Environment) -> str | None:
    """Of the catalogued device that it is, if any."""
    found = match(environment.device_name, environment.device_memory_bytes)
    return None if found is None else found.key


def merged(measurements: Iterable[Stored]) -> list[Merged]:
    """The models' cases that ran by kernels that the code has, each once.

    Of a case that was measured more than once, those of the best verdict count (stable before
    unstable before throttled), each session's alike, and of their medians the median.
    """
    by_case: dict[ModelCase, list[Stored]] = {}
    for each in measurements:
        case = each.measurement.case
        if isinstance(case, ModelCase) and is_replayed(each.measurement):
            by_case.setdefault(case, []).append(each)
    return [_merge(case, each) for case, each in by_case.items()]


def is_replayed(measurement: Measurement) -> bool:
    """Whether its time is one that the predictions of today can be held to."""
    former = is_of_former_kernels(measurement.case, measurement.started_at)
    return is_timed(measurement) and not former


def is_timed(measurement: Measurement) -> bool:
    """Whether it ran, for as many steps as a time needs: a recording of memory is of one."""
    return measurement.status == "ok" and measurement.protocol.max_steps >= MIN_STEPS


def median_s(measurement: Measurement) -> float:
    """The median step of a measurement that ran."""
    assert measurement.summary is not None
    return measurement.summary.median_s.estimate


def _merge(case: ModelCase, found: list[Stored]) -> Merged:
    every = [each.measurement for each in found]
    verdict = min((_verdict(each) for each in every), key=BEST_FIRST.index)
    taken = [each for each in every if _verdict(each) == verdict]
    return Merged(
        case=case,
        step_s=median(median_s(each) for each in taken),
        verdict=verdict,
        taken=tuple(taken),
        all=tuple(every),
        files=tuple(dict.fromkeys(each.file for each in found)),
        boards=tuple(dict.fromkeys(each.environment.device_uuid or "" for each in every)),
    )


def _verdict(measurement: Measurement) -> Verdict:
    assert measurement.validity is not None
    return measurement.validity.verdict
