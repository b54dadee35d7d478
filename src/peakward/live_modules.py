"""A module of the user's as it lives in this process: `pw.run(module, batch)`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from peakward.cli import machine, options, values
from peakward.levers.catalogue import LEVERS
from peakward.records.case import ModulePass
from peakward.records.errors import PeakwardError
from peakward.records.study import Study
from peakward.store.database import Store
from peakward.tune.aim import Aim
from peakward.tune.investigation import Investigation
from peakward.tune.run import investigate

if TYPE_CHECKING:
    import torch

COMMAND = (
    "# from Python: pw.run of a live {name}. In processes of its own, from a factory: "
    "peakward run --model py:package.module:factory"
)


def run_module(
    module: "torch.nn.Module",
    batch: "torch.Tensor | Sequence[Any] | Mapping[str, Any] | None",
    *,
    loss: "Callable[[Any], torch.Tensor] | None",
    pass_: ModulePass,
    levers: Sequence[str] | None,
    budget_s: float | None,
    sought: Aim,
    db: str,
) -> Study:
    """What `run` does of a case, in this process and on copies of the module.

    Raises:
        PeakwardError: as `run`; or the module, the batch or the loss is not what is needed.
    """
    from peakward.cli.run import allowed, seconds_of
    from peakward.lab.measure.live_module import LiveWorkers, live_case
    from peakward.lab.measure.sweep import Sweep
    from peakward.lab.models.given_module import given

    values.one_of(pass_, get_args(ModulePass), "a pass")
    if batch is None:
        raise PeakwardError(
            f"expected a case, or a module and a batch, got {type(module).__name__} alone: "
            "pw.run(case) or pw.run(module, batch)"
        )
    taken = given((module, batch, loss))
    case = live_case(taken, pass_)
    here = machine.this_machine(case.device)
    machine.runnable((case,), here)
    asked = Investigation(
        case=case,
        levers=LEVERS if levers is None else allowed(options.levers(levers), case, here, sought),
        budget_s=seconds_of(budget_s, case.device),
        command=COMMAND.format(name=type(module).__name__),
        obstacle=lambda lever, base: machine.lever_obstacle(lever, base, here),
        to_command=lambda _best: None,
        aim=sought,
    )
    with Store.open(Path(db)) as store, LiveWorkers(taken) as workers:
        sweep = Sweep(store, workers, here.environment)
        machine.expect_sound(case, sweep, asked.budget_s)
        return investigate(
            asked,
            sweep,
            store,
            on_stage=lambda _stage: None,
            on_prediction=lambda _floor, _forecast, _fitting: None,
        )
