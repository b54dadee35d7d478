"""Finds how several devices should share a training step: `run` with more than one."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from peakward.api import session
from peakward.api.cases import is_source
from peakward.api.machine import Machine
from peakward.api.session import QUIET, Observer
from peakward.records.case import (
    AS_WRITTEN,
    Configuration,
    ConfiguredCase,
    DeviceType,
    ModelCase,
    ModuleCase,
)
from peakward.records.errors import OutOfTimeError, PeakwardError
from peakward.records.layout import Layout
from peakward.records.measurement import Protocol
from peakward.records.plan import DryRun, PlannedStep
from peakward.records.study import Study
from peakward.report.cases import label
from peakward.studies import late_ranks, layouts
from peakward.studies.engine import Parts
from peakward.studies.engine import Study as Specification
from peakward.studies.execute import carry_out
from peakward.studies.layouts import Shared
from peakward.studies.readings import Readings
from peakward.studies.recorder import Recorder
from peakward.studies.scope import Scope
from peakward.studies.setting import Setting, read_setting

START: dict[DeviceType, dict[str, str | bool]] = {
    "cuda": {
        "precision": "bf16-mixed",
        "attention": "sdpa",
        "compile": "default",
        "optimizer": "adamw-fused",
    },
    "cpu": {"attention": "sdpa", "optimizer": "adamw-fused"},
}
"""Where a setting is not said: the layouts of a step that is slow for other reasons tell little."""
TAKEN: dict[str, tuple[object, ...]] = {
    "precision": layouts.PRECISIONS,
    "compile": ("none", "default"),
    "compile_scope": ("block",),
    "cuda_graphs": (False,),
    "checkpointing": ("none", "every-block"),
    "optimizer": ("adamw-foreach", "adamw-fused"),
    "weights": ("dense",),
}
"""The values that the step of several ranks knows on an axis; it takes every value of the others."""
CHOSEN = {axis: TAKEN[axis] for axis in ("precision", "compile", "checkpointing", "optimizer")}
"""The axes that a user's module leaves to be chosen."""
SCREENED = Protocol(phases=False, min_steps=10, max_steps=10)
CONFIRMED = Protocol(phases=False, min_steps=40, max_steps=40)
N_FINALISTS = 3
TITLE = "How should {n} devices share this step?"
TORCHRUN = "TORCHELASTIC_RUN_ID"


def asked_of_torchrun(environ: Mapping[str, str] = os.environ) -> int | None:
    """The ranks that torchrun started this command as; None where it did not, 0 in all but the first, which
    have nothing to do: the first starts the ranks of each layout anew.

    Raises:
        PeakwardError: ranks of several machines.
    """
    if TORCHRUN not in environ:
        return None
    n_ranks, n_here = int(environ["WORLD_SIZE"]), int(environ["LOCAL_WORLD_SIZE"])
    if n_ranks != n_here:
        raise PeakwardError(
            f"expected all ranks on one machine, got {n_here} of {n_ranks}: run it with --nnodes 1"
        )
    return n_ranks if environ["RANK"] == "0" else 0


def expect_sharable(case: ConfiguredCase) -> ConfiguredCase:
    """
    Raises:
        PeakwardError: a pass that does not train, or a setting that the step of several ranks does not know.
    """
    work = case.workload
    if work.pass_ != "train_step" or work.accumulate > 1 or work.data or work.varying_seq_lens:
        raise PeakwardError(
            "expected a train_step of one micro-batch of random tokens beside several GPUs, got another "
            "workload: leave --pass and --accumulate"
        )
    given = case.configuration.settings
    taken = TAKEN
    if isinstance(case, ModuleCase):  # Levers that are applied to it from outside are one GPU's.
        taken = {axis: (value,) for axis, value in AS_WRITTEN.settings.items()} | CHOSEN
    for axis, known in taken.items():
        if given[axis] not in known:
            raise PeakwardError(
                f"expected {axis} of {', '.join(map(str, known))} beside several GPUs, got {given[axis]}: "
                "take one of these"
            )
    return case


def share(
    case: ConfiguredCase,
    n_ranks: int,
    here: Machine,
    db: Path,
    *,
    budget_s: float,
    command: str,
    observer: Observer = QUIET,
    on_stage: Callable[[str], None] = lambda _stage: None,
    began_s: float | None = None,
) -> Study:
    """Measures the layouts of so many ranks, then the fastest of them for longer, within a budget that began
    at `began_s` by `time.monotonic`, else here.

    Raises:
        PeakwardError: more ranks than GPUs, GPUs of several kinds, or as `expect_sharable`.
    """
    from peakward.lab.parallel.launch import expect_devices

    case = expect_sharable(case)
    expect_devices(n_ranks, here.device)
    ends_s = (monotonic() if began_s is None else began_s) + budget_s
    left: dict[Protocol, list[str]] = {SCREENED: [], CONFIRMED: []}
    with session.opened(db, here, observer) as opened:
        sweep = opened.sweep
        setting = read_setting(sweep.environment, Scope("small"))
        sweep.workers.left_s = lambda: ends_s - monotonic()

        def gather(lab: Recorder) -> None:
            for protocol, chosen in ((SCREENED, None), (CONFIRMED, lab.readings)):
                for point in _points(case, n_ranks, protocol, chosen):
                    if point.absent is not None:
                        continue
                    if monotonic() < ends_s:
                        on_stage(f"{'timing' if chosen is None else 'confirming'} {point.name}")
                    try:
                        lab.measure(point.planned)
                    except OutOfTimeError:
                        left[protocol].append(point.name)

        def tell(readings: Readings) -> Parts:
            parts = _specification(case, n_ranks, readings).parts(readings, setting)
            return msgspec.structs.replace(parts, notes=(*parts.notes, *_left(left, command)))

        return carry_out(
            sweep,
            name="layouts",
            title=TITLE.format(n=n_ranks),
            command=command,
            calibration=opened.store.calibration(here.environment.key),
            gather=gather,
            tell=tell,
        )


def _left(left: Mapping[Protocol, list[str]], command: str) -> Iterator[str]:
    for protocol, done in ((SCREENED, "timed"), (CONFIRMED, "timed for longer")):
        if names := left[protocol]:
            yield f"The budget ended before these were {done}: {'; '.join(names)}."
    if any(left.values()):
        yield f"The same command with a longer --budget goes on: `{command}`."


def _points(
    case: ConfiguredCase, n_ranks: int, protocol: Protocol, screened: Readings | None = None
) -> tuple[Shared, ...]:
    """One rank's step and all candidates; of those screened the fastest alone."""
    tried = layouts.candidates(n_ranks, case.workload.batch_size, case.device)
    if screened is not None:
        tried = _finalists(case, tried, screened)
    return tuple(layouts.points_of(case, tried, protocol))


def _finalists(
    case: ConfiguredCase, tried: tuple[Layout, ...], screened: Readings
) -> tuple[Layout, ...]:
    times = {
        point.case.layout: found.summary.median_s.estimate
        for point in layouts.points_of(case, tried, SCREENED)
        if (found := screened.find(point.planned)) is not None and found.summary is not None
    }
    several = sorted((each for each in times if each.n_ranks > 1), key=times.__getitem__)
    return tuple(several[:N_FINALISTS])


def _specification(case: ConfiguredCase, n_ranks: int, readings: Readings) -> Specification[Shared]:
    """Tells each layout by its longer measurement, where it has one, and all against one base."""

    def points(_setting: Setting) -> Iterator[Shared]:
        longer = {each.case: each for each in _points(case, n_ranks, CONFIRMED, readings)}
        for each in _points(case, n_ranks, SCREENED):
            twin = longer.get(each.case)
            found = each if twin is None or readings.find(twin.planned) is None else twin
            if each.base is not None and readings.find((each.base[0], CONFIRMED)) is not None:
                found = msgspec.structs.replace(found, base=(each.base[0], CONFIRMED))
            yield found

    return Specification(
        title=TITLE.format(n=n_ranks),
        points=points,
        tables=layouts.tables(),
        claims=(layouts.choice, late_ranks.claim),
        notes=layouts.notes,
    )


def dry_run(case: ConfiguredCase, n_ranks: int, *, budget_s: float, command: str) -> DryRun:
    """The layouts that would be timed."""
    points = _points(expect_sharable(case), n_ranks, SCREENED)
    return DryRun(
        command=command,
        steps=tuple(
            PlannedStep(what=label(each.case), case=each.case, protocol=each.protocol)
            for each in points
            if each.absent is None
        ),
        budget_s=budget_s,
    )


def start(given: Any, said: Mapping[str, Any], device: DeviceType) -> dict[str, Any]:
    """The settings that a run of several devices starts with: those said, and ours where none is.

    Args:
        given: the options of a case, an attribute an axis, None where it was not said.
        said: settings that were made elsewhere.
    """
    own = {
        axis: value
        for axis, value in START[device].items()
        if axis not in said
        and getattr(given, axis, None) is None
        and (axis in CHOSEN or not is_source(given.model or ""))
    }
    return {**own, **said}


def with_start(case: ConfiguredCase) -> ConfiguredCase:
    """The case as it is; one with the default configuration has ours of its device."""
    if case.configuration not in (Configuration(), AS_WRITTEN):
        return case
    own = {
        axis: value
        for axis, value in START[case.device].items()
        if isinstance(case, ModelCase) or axis in CHOSEN
    }
    settings = case.configuration.with_settings(own)
    return msgspec.structs.replace(case, configuration=settings)
