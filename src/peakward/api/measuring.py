"""Measurements from Python: one case or step, a grid, a study, this machine's rates; and a comparison.

The command line carries its commands out by the same functions, with the line that the user wrote and a
observer that shows how far they are.
"""

import shlex
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peakward.api import session
from peakward.api.cases import checked, checked_protocol
from peakward.api.machine import Machine, runnable, this_machine
from peakward.api.reproduce import command_of
from peakward.api.session import DB, QUIET, Observer
from peakward.records import check
from peakward.records.calibration import Calibration
from peakward.records.case import Case, ConfiguredCase, DeviceType
from peakward.records.errors import PeakwardError, quoted
from peakward.records.measurement import Measurement, Protocol
from peakward.records.study import Study
from peakward.studies import comparison
from peakward.studies.bench import bench as measured_grid
from peakward.studies.bench import planned
from peakward.studies.execute import execute
from peakward.studies.readings import Planned
from peakward.studies.registry import study_entry
from peakward.studies.scope import Scope, default_scope

if TYPE_CHECKING:
    import torch

    from peakward.api.cluster import Jobs

MAX_RANKS = 64
"""The most ranks of one machine."""
OF_A_STEP = {"device", "protocol", "tokens_per_step"}


def measure(case: ConfiguredCase, protocol: Protocol | None = None) -> Measurement:
    """Measure one case in a worker process; nothing is stored. A failure is a status.

    Raises:
        PeakwardError: a value of another type than its field's; no such device here.
    """
    case = checked(case)
    protocol = checked_protocol(Protocol() if protocol is None else protocol)
    with session.workers() as workers:
        return workers.measure(case, protocol)


def measure_step(
    step: Callable[[], object],
    *,
    name: str,
    model: "torch.nn.Module | None" = None,
    optimizer: "torch.optim.Optimizer | None" = None,
    **settings: Any,
) -> Measurement:
    """Measure a live function that runs one step, in this process: `lab.measure.in_process`."""
    check.function(step, "step", "a function of no arguments that runs one step")
    check.line(name, "name")
    if unknown := settings.keys() - OF_A_STEP:
        raise PeakwardError(
            f"expected settings of a step ({', '.join(sorted(OF_A_STEP))}), got {', '.join(unknown)}"
        )
    session.expect_torch()
    from peakward.lab.measure import in_process
    from peakward.lab.models import given_module

    given_module.expect_live(model, optimizer)
    if settings.get("protocol") is not None:
        settings["protocol"] = checked_protocol(settings["protocol"])
    if settings.get("tokens_per_step") is not None:
        settings["tokens_per_step"] = check.rate(settings["tokens_per_step"], "tokens_per_step")
    if settings.get("device") is not None:
        settings["device"] = given_module.place(settings["device"])
    return in_process.measure_step(step, name=name, model=model, optimizer=optimizer, **settings)


def calibrate(
    device: DeviceType | None = None, *, gpus: int = 1, db: str | Path = DB
) -> Calibration:
    """Measure this machine's ceilings, rates and launch costs, and store them.

    `peakward devices calibrate`: under 90 s on a GPU, under 30 s on two CPU cores.

    Args:
        gpus: more than one measures the collectives between so many devices alone, and adds them to the
            stored calibration. Without a GPU these are processes over gloo.
    """
    n_ranks = check.whole(gpus, "gpus", low=1, high=MAX_RANKS)
    place = check.path(db, "db")
    return calibrated(this_machine(device), place, n_ranks=n_ranks)


def calibrated(
    here: Machine,
    db: Path,
    observer: Observer = QUIET,
    on_subject: Callable[[str], None] = lambda _subject: None,
    *,
    n_ranks: int = 1,
) -> Calibration:
    """The full calibration, stored; of several ranks the stored one, or else a full one, with their
    collectives."""
    from peakward.lab.measure.calibration.full import calibrate_in_full
    from peakward.lab.parallel.launch import expect_devices

    expect_devices(n_ranks, here.device)
    with session.opened(db, here, observer) as opened:
        measured = opened.store.calibration(here.environment.key) if n_ranks > 1 else None
        if measured is None or measured.rates is None:
            measured = calibrate_in_full(opened.sweep.workers, here.device, on_subject=on_subject)
            opened.store.add_calibration(measured)
        if n_ranks > 1:
            from peakward.lab.parallel import measured as ranks

            what = "GPUs" if here.device == "cuda" else "processes on the CPU (gloo)"
            on_subject(f"collectives between {n_ranks} {what}")
            found = ranks.calibrate(n_ranks, here.device)
            measured = measured.with_collectives(found)
            opened.store.add_calibration(measured)
    return measured


def bench(
    cases: Sequence[ConfiguredCase],
    protocols: Sequence[Protocol] = (Protocol(),),
    *,
    db: str | Path = DB,
) -> Study:
    """Measure every case by every protocol: `peakward bench`. What `db` holds is not run again."""
    asked = tuple(map(checked, check.items(cases, "cases")))
    by = tuple(map(checked_protocol, check.items(protocols, "protocols")))
    place = check.path(db, "db")
    if not asked or not by:
        raise PeakwardError(
            f"expected a case and a protocol to measure it by, got no {'protocol' if asked else 'case'}"
        )
    devices = {each.device for each in asked}
    if len(devices) != 1:
        raise PeakwardError(
            f"expected cases of one device, got {len(asked)} of {len(devices)}: "
            "run one bench for each device"
        )
    here = this_machine(asked[0].device)
    kept, reasons = runnable(asked, here)
    command = "\n".join(map(command_of, kept))
    return grid(kept, by, here, place, command=command, notes=reasons)


def grid(
    cases: Sequence[Case],
    protocols: Sequence[Protocol],
    here: Machine,
    db: Path,
    *,
    command: str,
    notes: Sequence[str],
    observer: Observer = QUIET,
    jobs: "Jobs | None" = None,
) -> Study:
    """Cases that can run here, by every protocol.

    Args:
        here: the machine that measures: this one, or that of the jobs.
        notes: what was left out, and why.
        jobs: measure them; None: workers of this process do.
    """
    plan = planned(cases, protocols)
    with _lab(db, here, observer, jobs, plan) as opened:
        if jobs is None:
            session.check_modules(plan, opened.sweep)
        return measured_grid(
            opened.sweep,
            cases,
            protocols,
            command=command,
            calibration=opened.store.calibration(here.environment.key),
            notes=notes,
        )


def _lab(
    db: Path, here: Machine, observer: Observer, jobs: "Jobs | None", plan: Sequence[Planned]
) -> AbstractContextManager[session.Session]:
    if jobs is None:
        return session.opened(db, here, observer)
    from peakward.api import cluster

    return cluster.opened(db, here, observer, jobs, plan)


def study(
    name: str, *, full: bool = False, device: DeviceType | None = None, db: str | Path = DB
) -> Study:
    """Carry out a study: `peakward study NAME`."""
    known = study_entry(check.line(name, "a study's name")).name
    check.flag(full, "full")
    place = check.path(db, "db")
    here = this_machine(device)
    scope = Scope("full") if full else default_scope(here.device)
    words = (["--full"] if full else []) + ([] if device is None else ["--device", device])
    command = shlex.join(["peakward", "study", known, *words])
    return studies((known,), scope, here, place, command=command)[0]


def studies(
    names: Iterable[str],
    scope: Scope,
    here: Machine,
    db: Path,
    *,
    command: str,
    observer: Observer = QUIET,
) -> tuple[Study, ...]:
    """The studies of these names in order, up to the one that a Ctrl-C ended."""
    names, found = tuple(names), []
    with session.for_studies(names, db, here, observer) as opened:
        calibration = opened.store.calibration(here.environment.key)
        for name in names:
            found.append(
                execute(name, opened.sweep, scope, command=command, calibration=calibration)
            )
            if not found[-1].complete:
                break
    return tuple(found)


def compare(before: Study, after: Study, *, threshold: float = 0.03, across: bool = False) -> Study:
    """The cases that two studies share, judged: `peakward compare`.

    Raises:
        PeakwardError: the environments differ (unless `across`), no case was measured in both, or a
            threshold that is no share.
    """
    for each in (before, after):
        if not isinstance(each, Study):
            raise PeakwardError(
                f"expected two studies to compare, got {quoted(each)}: `pw.bench` makes one, `pw.load` "
                "reads one"
            )
    check.share(threshold, "threshold")
    check.flag(across, "across")
    comparison.refuse_to_mix(before, after, across=across)
    found = comparison.changes(before, after, threshold=threshold)
    command = f"peakward compare {before.id} {after.id} --threshold {threshold}"
    command += " --across" if across else ""
    return comparison.study(before, after, found, threshold=threshold, command=command)
