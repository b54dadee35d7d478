"""A figure that calibration tries to measure, and what becomes of one that it cannot."""

from collections.abc import Callable
from typing import NamedTuple

from peakward.lab.measure import failure
from peakward.records.rates import (
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
    """The figure cannot be had on this machine; the message is the reason, said to the user."""


class Attempt(NamedTuple):
    """One figure, by the name that its absence would have."""

    figure: str
    measure: Callable[[], Figure]


def outcome(attempt: Attempt, subject: Subject) -> Figure | Absence:
    """The figure, or why there is none: whatever fails costs this one alone."""
    try:
        return attempt.measure()
    except Exception as error:  # noqa: BLE001  a library may raise anything on a type it lacks
        return Absence(subject=subject, figure=attempt.figure, reason=reason(error))


def reason(error: Exception) -> str:
    """Why a figure is absent, in one line."""
    return (
        str(error) if isinstance(error, NotMeasurableError) else failure.of_exception(error).reason
    )
