"""A training step of the user's as it lives in this process: `pw.investigate(step)`."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peakward.cli import machine
from peakward.levers.catalogue import AROUND_A_CALL, LEVERS
from peakward.records.case import LeverCase
from peakward.records.errors import PeakwardError
from peakward.records.lever import Lever
from peakward.records.study import Study
from peakward.store.database import Store
from peakward.tune.costs import HEADLINE
from peakward.tune.investigation import Investigation
from peakward.tune.run import investigate

if TYPE_CHECKING:
    import torch

COMMAND = "# from Python: pw.investigate of the live step {name}"
NO_ATTENTION = (
    "is of torch's scaled_dot_product_attention, which the step never calls: call it there"
)


def investigate_step(
    step: Callable[..., object],
    *,
    name: str | None,
    model: "torch.nn.Module | None",
    optimizer: "torch.optim.Optimizer | None",
    loader: Iterable[Any] | None,
    tokens_per_step: float | None,
    budget_s: float | None,
    db: str,
) -> Study:
    """What `run` does of a case, of the step itself, whose state is put back.

    Raises:
        PeakwardError: the step, its loader or a setting is not what is needed.
    """
    from peakward.cli.run import seconds_of
    from peakward.lab.levers.given_step import Given
    from peakward.lab.levers.step_check import expect_step
    from peakward.lab.measure.live_step import StepWorkers, live_case
    from peakward.lab.measure.sweep import Sweep

    given = Given(step=step, model=model, optimizer=optimizer, loader=loader)
    expect_step(given)
    if tokens_per_step is not None and not tokens_per_step > 0:
        raise PeakwardError(f"expected tokens_per_step above 0, got {tokens_per_step!r}")
    called = name or str(getattr(step, "__qualname__", type(step).__name__))
    case = live_case(given, name=called, tokens_per_step=tokens_per_step)
    here = machine.this_machine(case.device)
    may_take_s = seconds_of(budget_s, case.device)
    workers = StepWorkers(given, case)
    attends = workers.check_step().n > 0

    def obstacle(lever: Lever, base: LeverCase) -> str | None:
        named = dict(lever.sets).get("attention")
        if lever in AROUND_A_CALL and named is not None and not attends:
            return NO_ATTENTION
        return machine.lever_obstacle(lever, base, here)

    asked = Investigation(
        case=case,
        levers=tuple(dict.fromkeys((*LEVERS, *AROUND_A_CALL))),
        budget_s=may_take_s,
        command=COMMAND.format(name=called),
        obstacle=obstacle,
        to_command=lambda _best: None,
    )
    with Store.open(Path(db)) as store, workers:
        sweep = Sweep(store, workers, here.environment)
        # The investigation finds it stored.
        measured = sweep.measure(case, HEADLINE)
        if measured.status == "invalid":
            raise PeakwardError(measured.reason or "expected a step that can be measured")
        return investigate(
            asked,
            sweep,
            store,
            on_stage=lambda _stage: None,
            on_prediction=lambda _floor, _forecast, _fitting: None,
        )
