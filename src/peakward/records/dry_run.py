"""The record of `--dry-run`: all that a command would do."""

from typing import ClassVar

import msgspec

from peakward.records.case import Case
from peakward.records.protocol import Protocol
from peakward.records.result import Result


class PlannedStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step of the command."""

    what: str
    predicted_s: float | None = None
    """None where it was not predicted."""
    case: Case | None = None
    """The case that would be measured, where it is known beforehand."""
    protocol: Protocol | None = None
    is_stored: bool | None = None
    """Whether the database already holds its measurement; None for steps that are never stored."""


class DryRun(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that a command would do, in order. Nothing was run."""

    ROWS: ClassVar[tuple[str, ...]] = ("steps",)

    command: str
    steps: tuple[PlannedStep, ...]
    budget_s: float | None = None
    """The approximate upper limit of the time spent; None where the command takes no budget."""
    left_out: tuple[str, ...] = ()
    """The reasons why requested parts cannot run here."""
