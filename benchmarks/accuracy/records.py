"""What `prediction_accuracy` finds."""

from typing import Literal

import msgspec

from peakward.records.case import ModelCase
from peakward.records.measurement import Interval, Measurement, PhaseTime, Verdict
from peakward.records.prediction import PhasePrediction, Source, Waits

Seen = Literal["host costs", "operators of the shape", "nothing"]
"""What of a case the constants of `prediction.time` were fitted to; see `accuracy.seen`."""


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of one case, as `accuracy.measured` merges them."""

    case: ModelCase
    step_s: float
    """Median of the medians of those of the best verdict."""
    verdict: Verdict
    """The best that any of them has."""
    taken: tuple[Measurement, ...]
    """Those of that verdict."""
    all: tuple[Measurement, ...]
    files: tuple[str, ...]
    """Results that hold one of them."""
    boards: tuple[str, ...]
    """UUIDs of the GPUs that took them."""


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """A step's time from one source of rates."""

    source: Source
    step_s: Interval
    bound: Waits
    phases: tuple[PhasePrediction, ...]


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """One case, measured and predicted."""

    key: str
    """`records.case_key`."""
    label: str
    case: ModelCase
    files: tuple[str, ...]
    boards: tuple[str, ...]
    measured_s: float
    medians_s: tuple[float, ...]
    """Of every measurement, whatever its verdict."""
    verdict: Verdict
    doubts: tuple[str, ...]
    """Why the measurement is not stable."""
    measured_phases: tuple[PhaseTime, ...]
    """Timed on the device, in steps of their own; empty where they were not."""
    sm_clock_mhz: float | None
    seen: Seen
    calibrated: Predicted
    datasheet: Predicted

    def by(self, source: Source) -> Predicted:
        """The prediction from that source."""
        return self.calibrated if source == "calibrated" else self.datasheet

    def error(self, source: Source) -> float:
        """Predicted over measured, less one: positive where the prediction is too long."""
        return self.by(source).step_s.estimate / self.measured_s - 1

    def held(self, source: Source) -> bool:
        """Whether the interval holds the measured time."""
        interval = self.by(source).step_s
        return interval.low <= self.measured_s <= interval.high


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """The cases of one kind, by one source. Errors are relative to the measured time."""

    source: Source
    kind: str
    value: str
    n: int
    median: float
    p90: float
    """The least that nine in ten errors do not exceed."""
    worst: float
    bias: float
    """Median of the signed errors."""
    coverage: float
    """Share of cases whose interval holds the measured time."""


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Of one case among the worst."""

    key: str
    error: float
    reason: str


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Measured cases that are not predicted."""

    reason: str
    n: int


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """One board's measurements in one result file, over the calibrated prediction of the same case.

    None where no case is of that kind.
    """

    file: str
    board: str | None
    n_host: int
    host_ratio: float | None
    """Median of measured over predicted, where the host is waited for; so is the device's."""
    n_device: int
    device_ratio: float | None


class Repeats(msgspec.Struct, frozen=True, kw_only=True):
    """How far apart the medians of one case are that was measured more than once."""

    bound: Waits
    n: int
    median: float
    """Largest over smallest, less one."""
    worst: float


class HeldOut(msgspec.Struct, frozen=True, kw_only=True):
    """A model left out of a fit, and judged by it."""

    model: str
    n: int
    median: float
    """With the constants as they stand."""
    median_refitted: float | None
    """With those fitted to all other models; None where none are fitted."""
    coverage: float
    coverage_refitted: float
    """With factors of the interval fitted to all other models, and the constants as they stand."""


class Refit(msgspec.Struct, frozen=True, kw_only=True):
    """Host costs and intervals, each model by a fit that has not seen it."""

    bound: Waits
    constants: dict[str, float]
    """In units of a recorded call, fitted to all models together; of the device's, none."""
    factors: tuple[float, float]
    """Of the predicted time, likewise."""
    models: tuple[HeldOut, ...]
    together: HeldOut
    """All of them, each by the fit that left its model out."""


class ProductGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Matrix products in stored profiles of eager steps: kernel time, predicted over measured."""

    operator: str
    compute_type: str
    n_shapes: int
    median: float
    p90: float
    bias: float


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """The result file."""

    device: str
    device_key: str
    """In the catalogue."""
    calibration: str
    """File under results/."""
    fitted: bool
    """Whether constants of `prediction.time` were fitted to this device."""
    torch: tuple[str, ...]
    """Versions that measured."""
    n_measurements: int
    cases: tuple[Replayed, ...]
    refused: tuple[Refusal, ...]
    groups: tuple[Group, ...]
    worst: tuple[Reason, ...]
    worst_by_device: tuple[Reason, ...]
    """Of the cases that wait for the device."""
    sessions: tuple[Session, ...]
    repeats: tuple[Repeats, ...]
    refits: tuple[Refit, ...]
    products: tuple[ProductGroup, ...]
