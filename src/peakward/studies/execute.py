"""Running a study and putting it on record, whole or as far as it came."""

import time
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

import msgspec

from peakward.records.calibration import Calibration
from peakward.records.case import LayoutCase, ModelCase
from peakward.records.study import Study, Table
from peakward.studies import doubts
from peakward.studies.cases import sizes
from peakward.studies.engine import Parts
from peakward.studies.readings import Readings
from peakward.studies.recorder import Recorder
from peakward.studies.registry import specification, study_entry
from peakward.studies.scope import Scope
from peakward.studies.setting import read_setting

if TYPE_CHECKING:
    from peakward.lab.measure.sweep import Sweep
    from peakward.store.database import Store


def execute(
    name: str,
    lab: "Sweep",
    scope: Scope,
    *,
    command: str,
    calibration: Calibration | None = None,
) -> Study:
    """Run a study of `STUDIES` over the scope and store it.

    A Ctrl-C ends it early: the study that is stored and returned then has `complete=False` and says
    what the cases measured so far say. The same call resumes, as every case is stored when it ends.

    Raises:
        PeakwardError: no such study.
    """
    spec = specification(name)
    setting = read_setting(lab.environment, scope)
    return carry_out(
        lab,
        name=name,
        title=spec.title,
        command=command,
        calibration=None if study_entry(name).measures == "nothing" else calibration,
        gather=lambda recorder: spec.gather(recorder, setting),
        tell=lambda readings: spec.parts(readings, setting),
    )


def carry_out(
    lab: "Sweep",
    *,
    name: str,
    title: str,
    command: str,
    calibration: Calibration | None,
    gather: Callable[[Recorder], None],
    tell: Callable[[Readings], Parts],
) -> Study:
    """Gather measurements, have `tell` say what they mean, store the study."""
    started_at, start = datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter()
    recorder = Recorder(lab)
    complete = _finishes(gather, recorder)
    bare = Study(
        id=uuid.uuid4().hex,
        name=name,
        title=title,
        command=command,
        environment=lab.environment,
        started_at=started_at,
        wall_s=time.perf_counter() - start,
        complete=complete,
        measurements=tuple(recorder.readings),
        calibration=recorder.readings.calibration or calibration,
        profiles=recorder.readings.profiles,
        memory=recorder.readings.memory,
    )
    study = told(
        bare,
        recorder.readings,
        tell(recorder.readings),
        lab_notes=(
            *(each.note for each in recorder.not_profiled),
            *(each.note for each in recorder.not_recorded),
        ),
    )
    # A sweep asks its store for measurements alone; what the command line gives it is a Store.
    cast("Store", lab.store).add_study(study)
    return study


def told(study: Study, readings: Readings, parts: Parts, *, lab_notes: Sequence[str] = ()) -> Study:
    """The study with what its readings say: tables and plots that hold something, conclusions that name
    the doubtful times behind them, and notes, of which `lab_notes` say what could not be taken."""
    return msgspec.structs.replace(
        study,
        tables=tuple(each for each in (*_models(readings), *parts.tables) if each.rows),
        plots=tuple(plot for plot in parts.plots if any(each.points for each in plot.series)),
        conclusions=doubts.marked(parts.conclusions, readings, readings.profiles),
        notes=(*parts.notes, *lab_notes, *doubts.notes(readings)),
    )


def _models(readings: Readings) -> tuple[Table, ...]:
    cases = [each.case for each in readings if isinstance(each.case, ModelCase | LayoutCase)]
    shapes = [each.model for each in cases if each.model is not None]
    return (sizes(tuple(dict.fromkeys(shapes))),) if shapes else ()


def _finishes(gather: Callable[[Recorder], None], recorder: Recorder) -> bool:
    """Whether all was gathered: no Ctrl-C ended the run, or a case of it."""
    try:
        gather(recorder)
    except KeyboardInterrupt:
        return False
    stopped = (
        *(each.interrupted for each in recorder.readings),
        *(each.interrupted for each in recorder.not_profiled),
        *(each.interrupted for each in recorder.not_recorded),
    )
    return not any(stopped)
