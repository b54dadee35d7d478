"""Studies: finished investigations with their cases, results and conclusions. Reports are views of them."""

from typing import ClassVar, Literal

import msgspec

from peakward.records.calibration import Calibration
from peakward.records.finding import Diagnosis
from peakward.records.lever import NumericsVerdict, Trial
from peakward.records.measurement import Environment, Measurement
from peakward.records.memory import CaseMemory
from peakward.records.plan import Forecast
from peakward.records.prediction import Prediction
from peakward.records.profile import CaseProfile
from peakward.records.result import Result

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
    """A column's heading, and the unit that decides how its cells are printed."""

    name: str
    unit: Unit = "text"
    """`name` is text that identifies the row: it stays in the row however long it is."""


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rows of numbers in the units of their columns. None prints as "–"."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str | None = None


class Point(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mark with a label, and the ends of its interval where it has one."""

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
    """A drawing of stored numbers. In `bars`, a point's label names its bar and x gives its order. In `heat`,
    a series is a row of cells, x the column of each and y its shade; a cell without a point has no value."""

    title: str
    kind: Literal["lines", "bars", "roofline", "heat"]
    x_label: str
    y_label: str
    x_unit: Unit
    y_unit: Unit
    log_x: bool = False
    log_y: bool = False
    series: tuple[Series, ...]


class Evidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number that a conclusion states, and the sources that it was computed from."""

    quantity: str
    value: float
    unit: Unit
    from_ids: tuple[str, ...]
    """The ids of measurements, profiles, recorded memory, trials and calibrations; for catalogued things
    (devices, models, scaling fits) their names."""


class Conclusion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sentence. Its evidence holds every number in it."""

    text: str
    evidence: tuple[Evidence, ...]


class Unfinished(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The work that the budget of a `run` left undone."""

    budget_s: float
    short_s: float
    """The predicted time of the remaining work."""
    levers: tuple[str, ...] = ()
    """Levers that were not tried."""
    unconfirmed: tuple[str, ...] = ()
    """Levers that were faster when screened, but not confirmed for lack of time."""


class CallSite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The call in a file of the user's that a study of what lives in its process began with."""

    function: str
    """The public function that was called."""
    line: int
    blocks: str | None = None
    """An expression of `model` that gives its repeated blocks."""
    keeps_buffers: bool = False
    """Whether the model's buffers stay in fp32 under 16-bit parameters."""
    files: tuple[tuple[str, str], ...]
    """Paths of files below the working directory with digests of their content: of the call's, then of those
    that define the model."""


class Patch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The best of a run as a change of the user's own files, and what it was checked to give."""

    text: str
    """The unified diff, for `patch -p1` or `git apply` in the working directory; empty where no file needs a
    change."""
    written_to: str | None = None
    """The file that it was written to."""
    left: tuple[str, ...] = ()
    """The settings of the best that the diff does not make, a sentence each."""
    numerics: NumericsVerdict | None = None
    """The patched module's numbers held to the best's, by the rule of a reordered lever. None where it was
    not run."""
    best_s: float | None = None
    """The median step of the best on the files as they were. None where the two were not timed."""
    patched_s: float | None = None
    """The median step of the patched files, timed in turn with it; no lever is pulled but the optimizer's."""


class Study(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The results of one command. Reports are views of it; `measurements` are the raw data."""

    ROWS: ClassVar[tuple[str, ...]] = ("trials", "measurements")

    id: str
    name: str
    """`run`, `bench`, or the name of a study."""
    title: str
    command: str
    """The command that reproduces it."""
    environment: Environment
    started_at: str
    wall_s: float
    complete: bool
    """False where it was interrupted or its budget ended first. The results that it has are valid."""
    measurements: tuple[Measurement, ...]
    calibration: Calibration | None = None
    predictions: tuple[Prediction, ...] = ()
    """The floors of its cases."""
    forecasts: tuple[Forecast, ...] = ()
    """The forecasts of its cases, where this device is known. The first one was made before any
    measurement."""
    trials: tuple[Trial, ...] = ()
    profiles: tuple[CaseProfile, ...] = ()
    memory: tuple[CaseMemory, ...] = ()
    """The recorded memory of its cases."""
    diagnoses: tuple[Diagnosis, ...] = ()
    """For `run`: the diagnoses of its cases. Empty in studies older than the rules."""
    best_command: str | None = None
    """For `run`: the command that reproduces the best composition."""
    real_model: str | None = None
    """For `run`: the model with weights by which levers were judged, as `generate` takes it; None where the
    weights are random, and in studies older than this field."""
    steps: tuple[str, ...] | None = None
    """For `run`: the ids of the trials that lead from the baseline to the best, in order. None in studies
    older than this field."""
    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()
    conclusions: tuple[Conclusion, ...] = ()
    patch: Patch | None = None
    """For `run` of a user's module: the best as a change of its files, where one was asked for."""
    called: CallSite | None = None
    """The call that began it, where a file of the user's made it."""
    unfinished: Unfinished | None = None
    """For `run`: None where the budget sufficed, and in studies older than this field."""
    interrupted: bool = False
    """Whether Ctrl-C ended it, so that the same command would do more."""
    notes: tuple[str, ...] = ()
    """Conventions and limits that the reader needs: for example what was not run, and why."""


class Studies(Result, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Several studies of one command."""

    ROWS: ClassVar[tuple[str, ...]] = ("studies",)

    studies: tuple[Study, ...]
