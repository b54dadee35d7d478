"""Measures one subject of the full calibration, as far as possible."""

from collections.abc import Callable, Iterator

import msgspec

from peakward.lab.measure.calibration import (
    attention,
    disk,
    latency,
    launches,
    levels,
    link,
    products,
    traffic,
)
from peakward.lab.measure.calibration.attempt import Attempt, Figure, outcome, reason
from peakward.lab.measure.crowd import Crowd
from peakward.records.calibration import Absence, Rates, Subject
from peakward.records.case import DeviceType

ATTEMPTS: dict[Subject, Callable[[DeviceType], Iterator[Attempt]]] = {
    "products": products.attempts,
    "traffic": traffic.attempts,
    "launches": launches.attempts,
    "attention": attention.attempts,
    "levels": levels.attempts,
    "latency": latency.attempts,
    "link": link.attempts,
    "disk": disk.attempts,
}
TIMED_ON_HOST: tuple[Subject, ...] = ("launches", "disk")
"""The subjects that are timed on a GPU's host too."""


def rates(subject: Subject, device_type: DeviceType) -> Rates:
    """The subject's figures, and the reasons for the missing ones."""
    figures: list[Figure] = []
    absent: list[Absence] = []
    with Crowd() as crowd:
        for each in _outcomes(subject, device_type):
            if isinstance(each, Absence):
                absent.append(each)
            else:
                figures.append(each)
    doubt = crowd.doubt() if device_type == "cpu" or subject in TIMED_ON_HOST else None
    return msgspec.structs.replace(
        Rates(absent=tuple(absent), doubts=() if doubt is None else (f"{subject}: {doubt}",)),
        **{subject: tuple(figures)},
    )


def _outcomes(subject: Subject, device_type: DeviceType) -> Iterator[Figure | Absence]:
    """The outcome of each attempt; a subject that cannot be prepared at all is one absence."""
    try:
        for attempt in ATTEMPTS[subject](device_type):
            yield outcome(attempt, subject)
    except Exception as error:  # noqa: BLE001  as in `outcome`
        yield Absence(subject=subject, reason=reason(error))
