"""The floor of a case on a device: the minimum time of each phase."""

from typing import ClassVar, Literal

import msgspec

from peakward.records.case import Case
from peakward.records.measurement import Phase
from peakward.records.result import Result

Source = Literal["measured", "calibrated", "datasheet"]


class PhaseFloor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The minimum time of one phase: the longer of its arithmetic and its compulsory traffic."""

    phase: Phase
    flops: float
    bytes: float
    """Compulsory traffic: weights, gradients and optimiser state, each moved as often as necessary."""
    compute_s: float | None
    """None where the matmul rate of this device in the case's compute type is unknown."""
    memory_s: float
    floor_s: float | None
    bound: Literal["compute", "memory"] | None


class Prediction(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The floor of a step by phase, computed before the step is measured."""

    ROWS: ClassVar[tuple[str, ...]] = ("phases",)

    case: Case
    device: str
    phases: tuple[PhaseFloor, ...]
    floor_s: float | None
    """The sum over phases, because they run one after another."""
    compute_type: str
    matmul_flops_per_s: float | None
    bytes_per_s: float
    source: Source
    """The source of the two ceilings."""
    peak_flops_per_s: float | None = None
    """The datasheet's dense peak of the compute type, for MFU. None where the device is unknown."""
