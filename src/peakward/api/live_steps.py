"""Finds what holds back a live training step or a live loop: `investigate`, `watch`."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peakward.api import session
from peakward.api.investigating import investigated_here, no_command, seconds_of
from peakward.api.machine import lever_obstacle, n_cores, this_machine
from peakward.api.session import DB
from peakward.levers.catalogue import AROUND_A_CALL, LEVERS, with_settings
from peakward.levers.loader import n_workers
from peakward.records import check
from peakward.records.case import LeverCase, StepCase
from peakward.records.errors import PeakwardError, quoted
from peakward.records.finding import Diagnosis
from peakward.records.lever import Lever
from peakward.records.study import Study
from peakward.store import artefacts
from peakward.tune.costs import HEADLINE
from peakward.tune.investigation import Investigation
from peakward.tune.patching import call_site

if TYPE_CHECKING:
    import torch

    from peakward.tune.watch import Watch

STEP_COMMAND = "# from Python: pw.investigate of the live step {name}"


def investigate(
    step: Callable[..., object],
    *,
    name: str | None = None,
    model: "torch.nn.Module | None" = None,
    optimizer: "torch.optim.Optimizer | None" = None,
    loader: Iterable[Any] | None = None,
    tokens_per_step: float | None = None,
    budget_s: float | None = None,
    db: str | Path = DB,
) -> Study:
    """Find what holds back a training step given as a function, and what makes it faster; in this process.

    What can be set around a call is tried, tf32 and the kernels of torch's attention, and what the model and
    the optimizer can be given in place. Everything else is named with what to change. Parameters, optimiser,
    random states, the loader's generators, torch's settings and the schedulers of learning rates that the
    step's code names or its objects hold are as before afterwards; what else the step touches is not put
    back.

    Args:
        step: runs one whole step, again and again; called with the loader's next batch where there is one.
        name: for the report; the function's without.
        model: what the step calls and trains; also inside DistributedDataParallel, in a group of this process
            alone. Without it what is trained stays trained, and no lever's
            numbers can be verified, so that none is kept.
        optimizer: what the step steps; its flags are tried too.
        loader: a DataLoader, or another iterable that can be begun again; the wait for it is in the step
            and timed apart. A DataLoader is tried with workers, and on a GPU with copies made ahead.
        tokens_per_step: for rates.
        budget_s, db: as of `run`.

    Raises:
        PeakwardError: a step that raises, that does other work at each call, or that is compiled or
            captured already; a loader that ends; a setting that cannot be.
    """
    if name is not None:
        check.line(name, "name")
    if loader is not None:
        expect_loader(loader)
    if tokens_per_step is not None:
        tokens_per_step = check.rate(tokens_per_step, "tokens_per_step")
    place = check.path(db, "db")
    artefacts.check(place, overwrite=True, by="db")
    session.expect_torch()
    from peakward.lab.levers.given_step import Given, expect_step
    from peakward.lab.measure.live_step import StepWorkers, live_case
    from peakward.lab.measure.sweep import Sweep
    from peakward.lab.models import data_parallel
    from peakward.lab.models.given_module import expect_live
    from peakward.store.database import Store

    expect_live(model, optimizer)

    wrapper = None
    if model is not None:
        data_parallel.expect_alone(model)
        wrapper, model = data_parallel.wrapper_of(model), data_parallel.inside(model)
    given = Given(step=step, model=model, optimizer=optimizer, loader=loader, wrapper=wrapper)
    expect_step(given)
    called = name or str(getattr(step, "__qualname__", type(step).__name__))
    workers = StepWorkers(given)
    here = this_machine(workers.device)
    allowed_s = seconds_of(budget_s, workers.device)
    seen = workers.check_step()
    case = live_case(given, name=called, tokens_per_step=tokens_per_step, seen=seen)

    def obstacle(lever: Lever, base: LeverCase) -> str | None:
        if wrapper is not None:
            changed = with_settings(case.configuration, dict(lever.sets))
            if (reason := data_parallel.beneath(changed, case.written)) is not None:
                return reason
        return seen.obstacle(lever, case) or lever_obstacle(lever, base, here)

    asked = Investigation(
        case=case,
        levers=_of_a_step(case),
        budget_s=allowed_s,
        command=STEP_COMMAND.format(name=called),
        obstacle=obstacle,
        to_command=no_command,
        called=None if wrapper else call_site("investigate", model),
        given=(data_parallel.NOTE,) if wrapper else (),
    )
    with Store.open(place) as store, workers:
        sweep = Sweep(store, workers, here.environment)
        # The investigation finds it stored.
        measured = sweep.measure(case, HEADLINE)
        if measured.status == "invalid":
            raise PeakwardError(measured.reason or "expected a step that can be measured")
        if measured.status == "crashed":
            raise PeakwardError(
                f"expected a step that runs as often as it is called, got {measured.reason}: give batches of "
                "an iterator that ends by loader="
            )
        return investigated_here(asked, sweep, store)


def watch(
    *,
    every: int = 100,
    n_steps: int = 3,
    on_findings: Callable[[Diagnosis], object] | None = None,
    with_stack: bool = False,
) -> "Watch":
    """Findings about a training loop of your own while it runs: call `step()` at each step's end. Where
    nothing does, a step ends where the loop's optimizer has stepped.

        with pw.watch(every=100) as watch:
            for batch in watch.batches(loader):
                ...
                watch.step()

    Steps between windows cost two readings of the clock, and two more where `batches` times the
    wait for data; nothing is synchronised. What goes wrong in the watch is said once on stderr and
    leaves the loop alone. One watch a process; a profiler of your own goes before its windows.

    Args:
        every: steps from the end of one profiled window to the next.
        n_steps: in a window; the step before it, in which the profiler attaches itself, is slower too.
        on_findings: called with the `Diagnosis` of each window that shows any, in a thread of the
            watch's own; by default a table is printed on stderr where a finding is new.
        with_stack: record Python's stacks in windows: waits then say their line, and a window's
            steps take several times as long.

    Raises:
        PeakwardError: a window of no steps or of more than 20, or as long as what is between two.
    """
    from peakward.report.watch import Announcer
    from peakward.tune.watch import MAX_WINDOW_STEPS, Watch

    if on_findings is not None:
        check.function(on_findings, "on_findings", "a function of a Diagnosis")
    return Watch(
        every=check.whole(every, "every", low=1, high=10**12),
        n_steps=check.whole(n_steps, "n_steps", low=1, high=MAX_WINDOW_STEPS),
        with_stack=check.flag(with_stack, "with_stack"),
        on_findings=Announcer() if on_findings is None else on_findings,
    )


def _of_a_step(case: StepCase) -> tuple[Lever, ...]:
    """The levers to try or to tell; those of a loader where there is one, and cores for their workers."""
    values = ((each, dict(each.sets).get("loader")) for each in (*LEVERS, *AROUND_A_CALL))
    most = n_cores()
    return tuple(
        dict.fromkeys(
            each
            for each, value in values
            if value is None or ("loader" in case.handles and n_workers(str(value)) <= most)
        )
    )


def expect_loader(given: object) -> None:
    """
    Raises:
        PeakwardError: it gives no batches.
    """
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise PeakwardError(
            f"expected a loader that gives batches, got {quoted(given)}: give a DataLoader or a list"
        )
