"""The engine of the studies: what is measured, the row that comes of each case, and a study made of these.

A study is a specification: the points of its grid, tables and plots of values, and claims.
"""

import math
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, Generic, Literal, Self, TypeVar

import msgspec

from peakward.records.calibration import Calibration, Subject
from peakward.records.case import Case, ModelCase, OperatorCase
from peakward.records.measurement import Interval, Measurement, Protocol
from peakward.records.memory import CaseMemory
from peakward.records.profile import CaseProfile
from peakward.records.study import Conclusion, Plot, Table
from peakward.report.cases import label
from peakward.stats.pairs import median_ratio
from peakward.studies import readings as read
from peakward.studies.cases import place
from peakward.studies.readings import Planned, Readings
from peakward.studies.recorder import Recorder
from peakward.studies.setting import Setting

C = TypeVar("C", bound=Case)
P = TypeVar("P", bound="Point[Any]")

_ABSENT = {"oom": "out of memory", "timeout": "timed out", "invalid": "wrong result"}
"""The other statuses say themselves what happened."""
CANNOT_RUN = "cannot run here"


class Point(msgspec.Struct, Generic[C], frozen=True, kw_only=True):
    """One case of a grid. A study that tells its cases apart by more adds fields."""

    case: C
    protocol: Protocol
    name: str = ""
    """For a reader, among the cases that it is compared with."""
    base: Planned | None = None
    """The case that it is compared with, and how that is measured."""
    absent: str | None = None
    """Why the case cannot run on this machine; it is then not measured."""
    is_last: bool = False
    """Whether it is measured after all others, as whoever ends the study early then has the rest of it."""
    also: Literal["profile", "memory", "first step"] | None = None
    """The record that is made in a process of its own, after the whole grid was timed."""
    timed: Callable[[Measurement | None], Interval | None] = read.time
    """Reads the step time off a measurement, its own or its base's: the median, unless steps differ."""

    @property
    def planned(self) -> Planned:
        """The case and how it is measured."""
        return self.case, self.protocol


class Row(msgspec.Struct, Generic[P], frozen=True, kw_only=True):
    """A point and what came of it."""

    point: P
    measurement: Measurement | None = None
    base: Measurement | None = None
    """The measurement of the point's base."""
    profile: CaseProfile | None = None
    memory: CaseMemory | None = None
    calibration: Calibration | None = None
    find: Callable[[Planned], Measurement | None] = lambda _planned: None
    """Looks up another case of the record."""

    @property
    def name(self) -> str:
        """The point's name."""
        return self.point.name

    @property
    def case(self) -> Any:
        """The point's case."""
        return self.point.case

    @property
    def place(self) -> str:
        """The case that a comparison is of, for a sentence: "tiny 2 × 128 train_step"."""
        case: Case = self.case if self.base is None else self.base.case
        if isinstance(case, ModelCase):
            return place(case)
        if isinstance(
            case, OperatorCase
        ):  # Not how attention was computed: the two differ in that.
            shape = f"{case.batch_size} × {case.n_heads} × {case.seq_len} × {case.head_dim}"
            return f"{shape} {case.pass_}, {case.precision}"
        return label(case)

    @property
    def time(self) -> Interval | None:
        """The step time with its interval; None unless the case ended `ok`."""
        return self.point.timed(self.measurement)

    @property
    def base_time(self) -> Interval | None:
        """The base's step time with its interval; None unless it ended `ok`."""
        return self.point.timed(self.base)

    @property
    def median_s(self) -> float | None:
        """The estimate of `time`, in seconds."""
        return None if self.time is None else self.time.estimate

    @property
    def peak_bytes(self) -> int | None:
        """The measured peak memory; None unless the case ended `ok`."""
        return read.peak_bytes(self.measurement)

    @property
    def status(self) -> str:
        """For a table."""
        return "not available" if self.point.absent else read.status(self.measurement)

    @property
    def reason(self) -> str | None:
        """Why the case has no time; None where it has one."""
        if self.point.absent or self.measurement is None:
            return self.point.absent
        return self.measurement.reason

    @property
    def absence(self) -> str | None:
        """Why the case has no time, in two or three words; None where it has one."""
        if self.time is not None:
            return None
        if self.point.absent:
            return CANNOT_RUN
        if self.measurement is None:
            return "not run"
        return _ABSENT.get(self.measurement.told, self.measurement.told)

    @property
    def both(self) -> tuple[Measurement | None, ...]:
        """The sources of what compares the row with its base."""
        return self.base, self.measurement

    @property
    def n_repeats(self) -> int:
        """The processes that the intervals of both are over."""
        return min((len(each.runs) for each in self.both if each and each.runs), default=0)

    @property
    def within(self) -> str:
        """The words that follow the intervals of both rows and tell what those are within."""
        return read.processes(*self.both)

    @property
    def speed(self) -> Interval | None:
        """The base's time over the row's, with the interval that theirs give it: above 1 is faster. None for
        a row that is its own base, which has no ratio to tell."""
        return None if self._is_base else time_ratio(self.time, self.base_time)

    @property
    def over_base(self) -> Interval | None:
        """The row's time over its base's, with its interval: above 1 is slower. None as for `speed`."""
        return None if self._is_base else time_ratio(self.base_time, self.time)

    @property
    def _is_base(self) -> bool:
        return self.measurement is not None and self.measurement is self.base

    def against(self, other: Self) -> Self:
        """The row, held against another."""
        return msgspec.structs.replace(self, base=other.measurement)

    @property
    def peak_share(self) -> float | None:
        """The row's peak memory over its base's."""
        return read.ratio(self.peak_bytes, read.peak_bytes(self.base))

    @property
    def is_told_apart(self) -> bool:
        """Whether both were timed, and the intervals of their times do not overlap."""
        if self.base_time is None or self.time is None:
            return False
        return read.distinct(self.base_time, self.time)

    @property
    def sure(self) -> str:
        """For behind the interval of a ratio: what it is within, and whether it tells the two apart."""
        return self.within + ("" if self.is_told_apart else ": not told apart")

    @property
    def is_slower(self) -> bool:
        """Whether it takes longer than its base, by more than the intervals."""
        return self.is_told_apart and self.speed is not None and self.speed.estimate < 1


def time_ratio(before: Interval | None, after: Interval | None) -> Interval | None:
    """The second time over the first, with the interval that theirs give it; of means so unsteady that their
    intervals reach 0, of no known width."""
    if before is None or after is None:
        return None
    if min(before.low, after.low) <= 0:
        return Interval(estimate=after.estimate / before.estimate, low=0.0, high=math.inf)
    return median_ratio(before, after)


class View(msgspec.Struct, Generic[P], frozen=True, kw_only=True):
    """All that a study's tables, plots and claims are computed from."""

    rows: tuple[Row[P], ...]
    """In the order of the points, run or not."""
    readings: Readings
    setting: Setting

    @property
    def calibration(self) -> Calibration | None:
        """The device's, where the study asks for it."""
        return self.readings.calibration

    @property
    def on_gpu(self) -> bool:
        """Whether the study runs on a GPU."""
        return self.setting.device == "cuda"

    def find(self, planned: Planned) -> Measurement | None:
        """The measurement of a case beside the grid, such as a search's probe."""
        return self.readings.find(planned)


def view(points: Iterable[P], readings: Readings, setting: Setting) -> View[P]:
    """The points with what was measured of them."""
    return View(
        rows=tuple(row(each, readings) for each in points), readings=readings, setting=setting
    )


def row(point: P, readings: Readings) -> Row[P]:
    """One point with what was measured of it."""
    return Row(
        point=point,
        measurement=readings.find(point.planned),
        base=None if point.base is None else readings.find(point.base),
        profile=readings.profile(point.case),
        memory=readings.memory_of(point.case),
        calibration=readings.calibration,
        find=readings.find,
    )


class Parts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a study before it is put on record: all of it is computed from measurements."""

    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()
    conclusions: tuple[Conclusion, ...] = ()
    notes: tuple[str, ...] = ()


class Study(msgspec.Struct, Generic[P], frozen=True, kw_only=True):
    """A study's specification."""

    title: str
    points: Callable[[Setting], Iterable[P]] = lambda _setting: ()
    """Its grid; none of a study that runs no case."""
    rows: Callable[[View[P]], Iterable[Row[P]]] = lambda view: view.rows
    """Makes of the points' rows those that tables, plots, claims and notes see: with more, or others."""
    tables: tuple[Callable[[View[P]], Iterable[Table]], ...] = ()
    plots: tuple[Callable[[View[P]], Iterable[Plot]], ...] = ()
    claims: tuple[Callable[[View[P]], Iterable[Conclusion]], ...] = ()
    notes: Callable[[View[P]], Iterable[str]] = lambda _view: ()
    """Conventions and limits that a reader must know."""
    needs_ceilings: bool = False
    """Whether shares are of the device's ceilings, which are then measured first."""
    needs_rates: Callable[[Setting], tuple[Subject, ...]] = lambda _setting: ()
    """The subjects of a full calibration that it reads, which are then measured first."""
    search: Callable[[Recorder, Setting], None] | None = None
    """Measures what depends on the grid's results."""

    def plan(self, setting: Setting) -> tuple[Planned, ...]:
        """The cases known before anything is measured, each once; a search adds its probes."""
        points = sorted(self.points(setting), key=lambda point: point.is_last)
        return tuple(dict.fromkeys(each.planned for each in points if each.absent is None))

    def gather(self, lab: Recorder, setting: Setting) -> None:
        """Run the grid. An interruption leaves in the recorder what was measured.

        All is timed before anything is profiled: a profiler costs its process.
        """
        if subjects := self.needs_rates(setting):
            lab.calibrate(subjects)
        elif self.needs_ceilings:
            lab.ceilings()
        lab.measure_all(self.plan(setting))
        if self.search is not None:
            self.search(lab, setting)
        for point in self.points(setting):
            match point.also if point.absent is None else None:
                case "profile":
                    lab.profile(point.planned)
                case "memory":
                    lab.record_memory(point.planned)
                case "first step":
                    lab.explain_first_step(point.planned)

    def parts(self, readings: Readings, setting: Setting) -> Parts:
        """Computes what the measurements say; pure, and sound for any subset of them."""
        seen = view(self.points(setting), readings, setting)
        seen = msgspec.structs.replace(seen, rows=tuple(self.rows(seen)))
        return Parts(
            tables=tuple(chain.from_iterable(each(seen) for each in self.tables)),
            plots=tuple(chain.from_iterable(each(seen) for each in self.plots)),
            conclusions=tuple(chain.from_iterable(each(seen) for each in self.claims)),
            notes=tuple(self.notes(seen)),
        )
