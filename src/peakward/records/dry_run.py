"""What a command would do: the record of `--dry-run`."""

from typing import ClassVar

import msgspec

from peakward.records.case import Case
from peakward.records.protocol import Protocol
from peakward.records.result import Result


class PlannedStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that would be done."""

    what: str
    predicted_s: float | None = None
    """None where it was not predicted."""
    case: Case | None = None
    """The case that would be measured, where it is known beforehand."""
    protocol: Protocol | None = None
    is_stored: bool | None = None
    """Whether the database holds its measurement already; None where no step is ever stored."""


class DryRun(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that a command would do, in order; nothing was run."""

    ROWS: ClassVar[tuple[str, ...]] = ("steps",)

    command: str
    steps: tuple[PlannedStep, ...]
    budget_s: float | None = None
    """About the most that is spent; None where the command takes none."""
    left_out: tuple[str, ...] = ()
    """Why what was asked for cannot be done here."""
