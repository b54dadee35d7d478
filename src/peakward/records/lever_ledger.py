"""The accuracy of lever predictions: for every trial, the predicted against the measured ratio."""

from typing import ClassVar

import msgspec

from peakward.records.case import LeverCase
from peakward.records.measurement import Interval
from peakward.records.result import Result
from peakward.records.trial import TrialVerdict


class Errors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Errors of predicted ratios, |measured / predicted − 1|, over the trials that have both."""

    n: int
    predicted: float
    """Median of the predicted ratios, candidate over base."""
    measured: float
    """Median of the measured ones."""
    median: float
    p90: float
    """The 90th percentile of the errors."""


class LeverEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One lever on one device."""

    lever: str
    """The lever's name, or "composition" for several at once."""
    device: str
    """The device's name from the driver."""
    n_trials: int
    """Trials that ran something. Each comparison counts once."""
    n_kept: int
    n_rejected: int
    n_inconclusive: int
    n_numerics_held: int
    n_numerics_violated: int
    """The numbers of the other trials were not checked."""
    time: Errors | None = None
    n_within: int = 0
    """Trials of `time` whose measured ratio lies within the predicted interval."""
    n_decided: int = 0
    """Trials of `time` that are more than 1% faster or slower, with an interval that excludes 1."""
    n_sign_right: int = 0
    """Decided trials whose predicted ratio lies on the same side of 1 as the measured one."""
    memory: Errors | None = None


class Miss(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A trial whose predicted time is far from the measured one."""

    trial: str
    """The trial's id."""
    lever: str
    device: str
    base: LeverCase
    verdict: TrialVerdict
    predicted: Interval
    measured: Interval
    error: float
    """Measured over predicted ratio, minus 1."""
    within: bool


class Unpredicted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Trials whose time was not predicted, grouped by the reason."""

    reason: str
    n: int


class LeverLedger(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All trials of some databases and files."""

    ROWS: ClassVar[tuple[str, ...]] = ("entries",)

    sources: tuple[str, ...]
    n_trials: int
    entries: tuple[LeverEntry, ...]
    """Sorted by device, then by lever."""
    worst: tuple[Miss, ...]
    """The largest errors of time, largest first."""
    unpredicted: tuple[Unpredicted, ...]
    """The most frequent first."""
    impossible: tuple[str, ...] = ()
    """The ids of trials that measured faster than their bound allows."""
