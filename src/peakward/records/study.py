"""A finished investigation: cases, results, and what they say. The one thing a report shows."""

from typing import ClassVar, Literal

import msgspec

from peakward.records.calibration import Calibration
from peakward.records.case_memory import CaseMemory
from peakward.records.environment import Environment
from peakward.records.finding import Diagnosis
from peakward.records.measurement import Measurement
from peakward.records.plan import Forecast
from peakward.records.prediction import Prediction
from peakward.records.profile import CaseProfile
from peakward.records.result import Result
from peakward.records.trial import Trial

Unit = Literal[
    "text",
    "name",
    "count",
    "large_count",
    "s",
    "bytes",
    "flops",
    "flops_per_s",
    "bytes_per_s",
    "tokens_per_s",
    "ratio",
    "share",
    "j",
]
Cell = str | int | float | None


class Column(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A column's heading and the unit of its cells, which says how they are printed."""

    name: str
    unit: Unit = "text"
    """`name` is text that says what a row is about: it stays in the row however long it is."""


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rows of numbers in the units of their columns; None prints as "–"."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str | None = None


class Point(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mark, with the ends of its interval where it has one, and a label."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str | None = None


class Series(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Points of one kind."""

    name: str
    points: tuple[Point, ...]


class Plot(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A drawing of stored numbers. In `bars`, a point's label names its bar and x orders it."""

    title: str
    kind: Literal["lines", "bars", "roofline"]
    x_label: str
    y_label: str
    x_unit: Unit
    y_unit: Unit
    log_x: bool = False
    log_y: bool = False
    series: tuple[Series, ...]


class Evidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number that a conclusion states, and what it was computed from."""

    quantity: str
    value: float
    unit: Unit
    from_ids: tuple[str, ...]
    """Of measurements, profiles, recorded memory, trials and calibrations the ids; of what is
    catalogued (devices, models, scaling fits) the names."""


class Conclusion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sentence whose every number is in its evidence."""

    text: str
    evidence: tuple[Evidence, ...]


class Unfinished(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the budget of a `run` left undone."""

    budget_s: float
    short_s: float
    """How much longer what is left should take."""
    levers: tuple[str, ...] = ()
    """Not tried at all."""
    unconfirmed: tuple[str, ...] = ()
    """Faster when screened, and not confirmed for want of time."""


class Study(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one command found. Reports are views of it; `measurements` are its raw truth."""

    ROWS: ClassVar[tuple[str, ...]] = ("trials", "measurements")

    id: str
    name: str
    """run, bench, or the name of a study."""
    title: str
    command: str
    """Reproduces it."""
    environment: Environment
    started_at: str
    wall_s: float
    complete: bool
    """False where it was interrupted or its budget ended first; what is here still holds."""
    measurements: tuple[Measurement, ...]
    calibration: Calibration | None = None
    predictions: tuple[Prediction, ...] = ()
    """Floors of its cases."""
    forecasts: tuple[Forecast, ...] = ()
    """Of its cases, where this device is known: the first of them made before anything was measured."""
    trials: tuple[Trial, ...] = ()
    profiles: tuple[CaseProfile, ...] = ()
    memory: tuple[CaseMemory, ...] = ()
    """What the memory of its cases was held for."""
    diagnoses: tuple[Diagnosis, ...] = ()
    """For `run`: what the rules say of its cases. Empty in studies stored before there were rules."""
    best_command: str | None = None
    """For `run`: reproduces the best composition found."""
    steps: tuple[str, ...] | None = None
    """For `run`: the ids of the trials that lead from the baseline to the best, in order. None in
    studies stored before it was kept."""
    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()
    conclusions: tuple[Conclusion, ...] = ()
    unfinished: Unfinished | None = None
    """For `run`: None where the budget sufficed, and in studies stored before it was kept."""
    interrupted: bool = False
    """Ended by Ctrl-C, so that the same command has more to do."""
    notes: tuple[str, ...] = ()
    """Conventions and limits the reader must know: what was not run, and why."""


class Studies(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Several studies that one command carried out."""

    ROWS: ClassVar[tuple[str, ...]] = ("studies",)

    studies: tuple[Study, ...]
