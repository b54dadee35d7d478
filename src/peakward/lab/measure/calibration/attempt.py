"""A figure that calibration tries to measure, and its absence where it cannot be measured."""

from collections.abc import Callable
from typing import NamedTuple

from peakward.lab.measure import failure
from peakward.records.calibration import (
    Absence,
    AttentionRate,
    DiskRate,
    LaunchCost,
    LevelRate,
    LinkRate,
    LoadLatency,
    ProductRate,
    Subject,
    TrafficRate,
)

Figure = (
    ProductRate
    | TrafficRate
    | LaunchCost
    | AttentionRate
    | LevelRate
    | LoadLatency
    | LinkRate
    | DiskRate
)


class NotMeasurableError(Exception):
    """The figure cannot be measured on this machine; the message is the reason, shown to the user."""


class Attempt(NamedTuple):
    """One figure to measure, with the name that its absence would have."""

    figure: str
    measure: Callable[[], Figure]


def outcome(attempt: Attempt, subject: Subject) -> Figure | Absence:
    """The figure, or the reason for its absence; a failure costs only this figure."""
    try:
        return attempt.measure()
    except Exception as error:  # noqa: BLE001  a library may raise anything on a type it lacks
        return Absence(subject=subject, figure=attempt.figure, reason=reason(error))


def reason(error: Exception) -> str:
    """The reason why a figure is absent, in one line."""
    return (
        str(error) if isinstance(error, NotMeasurableError) else failure.of_exception(error).reason
    )
