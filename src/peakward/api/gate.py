"""A step of the user's own, measured in a test and held to a stored baseline.

The baseline is a study in a JSON file, as `peakward bench --json` writes one, with a measurement for
each name; `peakward report` and `peakward compare` read it too.
"""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from peakward.api.measuring import measure_step
from peakward.records import codec
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Measurement
from peakward.records.study import Study
from peakward.store import artefacts
from peakward.studies import comparison

THRESHOLD = 0.03
"""As `peakward compare`'s."""


def measured(step: Callable[[], object], *, name: str, **settings: Any) -> Measurement:
    """The step, in this process: `pw.measure_step`.

    Raises:
        PeakwardError: there is no torch, the step did not run, or a setting is wrong.
    """
    found = measure_step(step, name=name, **settings)
    if found.status != "ok":
        raise PeakwardError(f"expected a step that runs, got {found.status}: {found.reason}")
    return found


def judged(
    baseline: Path, now: Measurement, *, threshold: float, across: bool
) -> comparison.Change:
    """The change of the step since the baseline, whatever its code has become.

    Raises:
        PeakwardError: no baseline of that name, or one of another environment (unless `across`).
    """
    study = read(baseline)
    before = next((each for each in study.measurements if _name(each) == _name(now)), None)
    if before is None:
        raise PeakwardError(
            f"expected a baseline named {_name(now)!r} in {baseline}, got none: {HOW_TO_UPDATE}"
        )
    apart = comparison.differences(before.environment, now.environment)
    if apart and not across:
        raise PeakwardError(
            f"expected the environment of {baseline}, got {'; '.join(apart)}: a baseline is of one "
            f"kind of machine; {HOW_TO_UPDATE}, or compare all the same with across=True"
        )
    return comparison.change(before, now, threshold)


HOW_TO_UPDATE = "store one of this machine with `pytest --peakward-update`"


def read(baseline: Path) -> Study:
    """The stored study.

    Raises:
        PeakwardError: no such file, or no study in it.
    """
    try:
        return codec.from_json(baseline.read_bytes(), Study)
    except OSError as error:
        raise PeakwardError(
            f"expected a baseline at {baseline}, got {error.strerror}: {HOW_TO_UPDATE}"
        ) from error
    except PeakwardError as error:
        raise PeakwardError(f"{baseline}: {error}") from error


def keep(baseline: Path, now: Measurement) -> None:
    """Put the measurement into the file in the place of the one of its name; others stay.

    Those of another environment go: a study is of one.

    Raises:
        PeakwardError: the file holds no study, or cannot be written.
    """
    others: tuple[Measurement, ...] = ()
    if baseline.is_file():
        others = tuple(
            each
            for each in read(baseline).measurements
            if _name(each) != _name(now) and each.environment.key == now.environment.key
        )
    study = Study(
        id=uuid.uuid4().hex,
        name="bench",
        title="Baseline of a test suite",
        command="pytest --peakward-update",
        environment=now.environment,
        started_at=now.started_at,
        wall_s=sum(each.wall_s for each in (*others, now)),
        complete=True,
        measurements=(*others, now),
    )
    artefacts.write(baseline, codec.to_json(study) + b"\n")


def said(found: comparison.Change, baseline: Path) -> str:
    """One line: both medians, the ratio with its interval, and why."""
    name = _name(found.before)
    if found.ratio is None:
        return f"{name}: {found.verdict} against {baseline}: {found.reason}"
    times = [
        f"{each.summary.median_s.estimate:.4g} s"
        for each in (found.before, found.after)
        if each is not None and each.summary is not None
    ]
    ratio = found.ratio
    why = f" ({found.reason})" if found.reason else ""
    return (
        f"{name}: {found.verdict}{why} against {baseline}: {' → '.join(times)}, "
        f"{ratio.estimate:.3f}× ({ratio.low:.3f}–{ratio.high:.3f}×)"
    )


def _name(found: Measurement) -> str:
    return str(msgspec.to_builtins(found.case).get("name", ""))
