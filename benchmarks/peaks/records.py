"""What `peak_memory` finds."""

from typing import Literal

import msgspec

from accuracy.records import Refusal
from peakward.records.case import ModelCase
from peakward.records.memory import MemoryBasis, MemoryPhase, MemorySplit

Ended = Literal["ok", "oom"]


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """One case's memory, measured and predicted."""

    key: str
    """`records.case_key`."""
    label: str
    case: ModelCase
    device: str
    """Key in the catalogue."""
    file: str
    measured_bytes: int
    """The allocator's peak of allocated bytes."""
    measured_reserved_bytes: int | None
    predicted: MemorySplit
    predicted_reserved_bytes: int | None
    phase: MemoryPhase
    """In which the peak is predicted."""
    basis: MemoryBasis

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted.total_bytes / self.measured_bytes - 1

    @property
    def reserved_error(self) -> float | None:
        """Of reserved bytes; None where they were not measured, not predicted, or a limit was near,
        at which the allocator returns what is free."""
        limited = self.case.memory_limit_bytes is not None
        if limited or not self.measured_reserved_bytes or self.predicted_reserved_bytes is None:
            return None
        return self.predicted_reserved_bytes / self.measured_reserved_bytes - 1


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a case fits, as predicted and as it ended."""

    key: str
    label: str
    device: str
    limit_bytes: int
    own_limit: bool
    """The case's, not the card's."""
    needed_bytes: int
    fits: bool | None
    """None: said to lie too near to tell."""
    ended: Ended

    @property
    def right(self) -> bool | None:
        """None where nothing is said."""
        return None if self.fits is None else self.fits == (self.ended == "ok")

    @property
    def distance(self) -> float:
        """Of what is needed from the limit, as a share of it."""
        return self.needed_bytes / self.limit_bytes - 1


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """The cases of one kind. Errors are relative to the measured peak."""

    kind: str
    value: str
    n: int
    median: float
    p90: float
    """The least that nine in ten errors do not exceed."""
    worst: float
    bias: float
    """Median of the signed errors."""
    reserved_median: float | None
    reserved_worst: float | None


class VerdictGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The verdicts at one limit."""

    device: str
    limit: str
    n: int
    near: int
    """Within `judge.BAND` of the limit: not counted in what follows."""
    right: int
    wrong: int
    untold: int


class MemoryAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """The result file."""

    devices: tuple[str, ...]
    torch: tuple[str, ...]
    peaks: tuple[Peak, ...]
    groups: tuple[Group, ...]
    verdicts: tuple[Verdict, ...]
    verdict_groups: tuple[VerdictGroup, ...]
    refused: tuple[Refusal, ...]
