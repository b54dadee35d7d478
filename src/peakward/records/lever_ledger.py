"""How predictions of levers fared: what was foretold of every trial, against what was measured."""

from typing import ClassVar

import msgspec

from peakward.records.case import LeverCase
from peakward.records.measurement import Interval
from peakward.records.result import Result
from peakward.records.trial import TrialVerdict


class Errors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of predicted ratios, |measured / predicted − 1|, over the trials that have both."""

    n: int
    predicted: float
    """Median of the predicted ratios, candidate over base."""
    measured: float
    """Median of the measured ones."""
    median: float
    p90: float
    """The least error that nine in ten do not exceed."""


class LeverEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One lever on one device."""

    lever: str
    """Or "composition": several at once."""
    device: str
    """As the driver names it."""
    n_trials: int
    """Those in which something was run; each comparison once."""
    n_kept: int
    n_rejected: int
    n_inconclusive: int
    n_numerics_held: int
    n_numerics_violated: int
    """The others' numbers were not checked."""
    time: Errors | None = None
    n_within: int = 0
    """Of those of `time`, measured within the predicted interval."""
    n_decided: int = 0
    """Of those of `time`, measured more than 1% faster or slower, with no interval that holds 1."""
    n_sign_right: int = 0
    """Of those decided, predicted on the same side of 1."""
    memory: Errors | None = None


class Miss(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A trial whose time was predicted, far from what was measured."""

    trial: str
    """Its id."""
    lever: str
    device: str
    base: LeverCase
    verdict: TrialVerdict
    predicted: Interval
    measured: Interval
    error: float
    """Measured over predicted ratio, less one."""
    within: bool


class Unpredicted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Trials whose time was not predicted, for one reason."""

    reason: str
    n: int


class LeverLedger(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All trials of some databases and files."""

    ROWS: ClassVar[tuple[str, ...]] = ("entries",)

    sources: tuple[str, ...]
    n_trials: int
    entries: tuple[LeverEntry, ...]
    """By device, then by lever."""
    worst: tuple[Miss, ...]
    """The largest errors of time, first."""
    unpredicted: tuple[Unpredicted, ...]
    """The most frequent first."""
    impossible: tuple[str, ...] = ()
    """The ids of trials that measured faster than their bound allows."""
