"""Makes a model faster where it lives: `optimize`, and `apply` of what an earlier study found."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from peakward.api import session, stored
from peakward.api.investigating import (
    MODULE_COMMAND,
    aim,
    investigation,
    no_command,
    on_copies,
    seconds_of,
)
from peakward.api.live_steps import expect_loader
from peakward.api.machine import this_machine
from peakward.api.session import DB
from peakward.levers.catalogue import with_settings
from peakward.levers.compile import told_of
from peakward.levers.optimizer import form_of, is_adamw
from peakward.records import check
from peakward.records.case import Configuration, LeverCase, ModuleCase, ModulePass, StepCase
from peakward.records.errors import PeakwardError, quoted
from peakward.records.lever import Lever, NumericsClass, Objective
from peakward.records.study import Study
from peakward.store import artefacts
from peakward.tune.investigation import Aim
from peakward.tune.lever_stack import LeverStack, parts
from peakward.tune.optimized import Optimized
from peakward.tune.patching import call_site

if TYPE_CHECKING:
    import torch

    from peakward.lab.levers.in_place import Live

SEARCHES = 0.8
"""The share of the budget for the search; the rest is for the proof in place."""


def optimize(
    model: "torch.nn.Module",
    batch: "torch.Tensor | Sequence[Any] | Mapping[str, Any] | None" = None,
    *,
    loss: "Callable[..., torch.Tensor] | None" = None,
    optimizer: "torch.optim.Optimizer | None" = None,
    loader: Iterable[Any] | None = None,
    levers: Sequence[str] | None = None,
    budget: str | float | None = None,
    objective: Objective = "latency",
    max_memory_bytes: int | None = None,
    numerics: NumericsClass = "approximate",
    db: str | Path = DB,
) -> Optimized:
    """Find the best composition of levers, apply it to the model and the optimizer in place, and prove it
    there.

    The search runs on copies. Then the loss, each gradient and one update of the live model are compared on
    the batch, with the composition and without, and its step is timed in turns; parameters, moments,
    gradients and random states are as before. A lever whose numbers do not hold is left out, what does not
    prove better in place is taken back, and the handle says why.

    Args:
        model: a module in fp32, which stays the object that it is, with all of its parameters. One that is
            compiled already starts from that, as a whole or by blocks in torch's default mode; what
            `torch.compile` made of a module stays as it is, and the levers work in that module. One inside
            DistributedDataParallel may have a group of this process alone.
        batch: a tensor, or a sequence or mapping of inputs, on the model's device; the first tensor is
            (batch_size, seq_len, …). None: the loader's first.
        loss: of the model's output, or of the output and the batch; without it the output is the loss, or
            has it as `.loss`.
        optimizer: the one that trains the model; of another class than torch's AdamW the proof in place alone
            has it. Without it a step is forward and backward.
        loader: gives the batch where none is given; it is left as it was.
        levers: names to try; None tries all that can be applied in place.
        budget: about how long it may take: seconds, or text such as "90s" or "4m". None: as for `run`.
        objective: what levers are judged by.
        max_memory_bytes: nothing is kept whose peak allocated memory is above it.
        numerics: the class beyond which no lever is tried.
        db: where results are kept.

    Returns:
        The handle: `.levers`, `.report`, `.certificate`, `.proof`, `.step(batch)`, `.patch()` and `.undo()`.

    Raises:
        PeakwardError: a model, a batch or a loss that cannot be stepped, an optimizer of none of the model's
            parameters, or a named lever that cannot apply.
    """
    names = None if levers is None else check.texts(levers, "levers", "levers")
    place = check.path(db, "db")
    artefacts.check(place, overwrite=True, by="db")
    if max_memory_bytes is not None:
        max_memory_bytes = check.memory_bytes(max_memory_bytes, "max_memory_bytes")
    if loss is not None:
        check.function(loss, "loss", "a function of the model's output")
    budget_s = check.duration_s(budget, "budget") if isinstance(budget, str) else budget
    session.expect_torch()
    from peakward.lab.data.given_loader import first_batch
    from peakward.lab.levers.in_place import Live
    from peakward.lab.measure.live_module import live_case
    from peakward.lab.models import data_parallel
    from peakward.lab.models.callers_compilation import CallersCompilation
    from peakward.lab.models.given_module import (
        expect_live,
        expect_module,
        expect_trained,
        given,
        loss_on,
    )

    expect_live(expect_module(model), optimizer)
    expect_trained(model, optimizer)
    if batch is None:
        batch = first_batch(loader)
    data_parallel.expect_alone(model)
    wrapper, compilation = (
        data_parallel.wrapper_of(model),
        CallersCompilation(data_parallel.inside(model)),
    )
    with compilation.off() as plain:
        taken = given((plain, batch, loss_on(loss, batch)))
    pass_: ModulePass = "forward_backward" if optimizer is None else "train_step"
    case = live_case(taken, pass_, compilation.scope)
    stands_in = None if optimizer is None else _stands_in(optimizer)
    if optimizer is not None:
        form = form_of(optimizer, case.device) if stands_in is None else "adamw-fused"
        found = with_settings(case.configuration, {"optimizer": form})
        case = msgspec.structs.replace(case, configuration=found)
    here = this_machine(case.device)
    allowed_s = seconds_of(budget_s, case.device)
    ends_s = time.monotonic() + allowed_s
    sought = aim(objective, max_memory_bytes, numerics, here)
    live = Live(
        model=plain,
        optimizer=optimizer,
        keeps_buffers=taken.keeps_buffers,
        compilation=compilation if compilation.scope else None,
        wrapper=wrapper,
    )
    asked = investigation(
        case,
        names,
        here,
        budget_s=SEARCHES * allowed_s,
        sought=sought,
        command=MODULE_COMMAND.format(name=type(plain).__name__),
        to_command=no_command,
        beside=_in_place(live, case.configuration),
    )
    asked = msgspec.structs.replace(
        asked,
        called=None if wrapper else call_site("optimize", plain),
        given=(
            *told_of(compilation.scope),
            *([data_parallel.NOTE] if wrapper else ()),
            *([stands_in] if stands_in else ()),
        ),
    )
    study = on_copies(asked, taken, place)
    if study.measurements and study.measurements[0].status == "crashed":
        raise PeakwardError(
            f"expected a model that can be stepped on the batch, got {study.measurements[0].reason}"
        )
    stack = _stack(study, case)
    return Optimized(study, live, stack, loss=loss, batch=batch, aim=sought, until_s=ends_s)


def apply(
    study: Study | str | Path,
    model: "torch.nn.Module",
    optimizer: "torch.optim.Optimizer | None" = None,
    *,
    batch: "torch.Tensor | Sequence[Any] | Mapping[str, Any] | None" = None,
    loss: "Callable[..., torch.Tensor] | None" = None,
    loader: Iterable[Any] | None = None,
) -> Optimized:
    """Apply what an earlier study found to a model and an optimizer in place, without a search.

    Args:
        study: of `optimize`, `investigate` or `run`, or the path of its file or database.
        model: of the class and with the parameters that the study is of, on the same kind of device; or
            inside DistributedDataParallel, then without a batch where its group has several processes.
        optimizer: the one that trains it.
        loader: the one that feeds an investigated step; `.loader` of the handle is what is made of it.
        batch: what to certify and prove it on, as for `optimize`; None: it is applied as it is.
        loss: as for `optimize`.

    Raises:
        PeakwardError: no study of a module or a live step, or one of another model; a loader that no other
            can be made of, or for a study of a module.
    """
    if not isinstance(study, Study):
        study = stored.load(str(check.path(study, "a study")), DB)
    if loss is not None:
        check.function(loss, "loss", "a function of the model's output")
    base = _base(study)
    stack = _stack(study, base)
    session.expect_torch()
    from peakward.lab.levers.in_place import Live
    from peakward.lab.measure.live_module import expect_model_of
    from peakward.lab.models import data_parallel
    from peakward.lab.models.given_module import (
        expect_live,
        expect_module,
        expect_plain,
        expect_trained,
        given,
        keeps_buffers,
        loss_on,
    )

    expect_live(expect_module(model), optimizer)
    expect_trained(model, optimizer)
    wrapper, model = data_parallel.wrapper_of(model), data_parallel.inside(model)
    expect_plain(model)
    if batch is not None:
        if wrapper is not None:
            data_parallel.expect_alone(wrapper)
        if isinstance(base, StepCase):
            raise PeakwardError(
                "expected no batch for the study of a live step, got one: the step itself says what it "
                "computes; leave it out"
            )
        given((model, batch, loss_on(loss, batch)))
    expect_model_of(base, study.measurements[0].n_parameters, model)
    fed = None if loader is None else _fed(stack, loader)
    live = Live(
        model=model, optimizer=optimizer, keeps_buffers=keeps_buffers(model), wrapper=wrapper
    )
    return Optimized(
        study, live, stack, loss=loss, batch=batch, aim=Aim(), until_s=time.monotonic(), loader=fed
    )


def _fed(stack: LeverStack, given: Iterable[Any]) -> Iterable[Any]:
    """The loader that the stack makes of the given one."""
    from peakward.lab.levers.given_step import loader_of

    if not isinstance(stack.top, StepCase):
        raise PeakwardError(
            "expected no loader for a study of a module, got one: its levers leave the loader alone"
        )
    expect_loader(given)
    return loader_of(stack.top, given)


def _base(study: Study) -> ModuleCase | StepCase:
    """The module or the live step as it was before the study.

    Raises:
        PeakwardError: it is of no module, or no search.
    """
    base = study.measurements[0].case if study.measurements else None
    if not isinstance(base, ModuleCase | StepCase) or study.steps is None:
        raise PeakwardError(
            f"expected a study by pw.optimize, pw.investigate or pw.run of a module, got "
            f"{quoted(study.title)}: run one"
        )
    return base


def _stack(study: Study, base: ModuleCase | StepCase) -> LeverStack:
    """The levers of the study's best composition, on its baseline."""
    by_id = {each.id: each.lever for each in study.trials}
    names = (by_id[each] for each in study.steps or () if each in by_id)
    stack = LeverStack(base=base)
    for lever in (each for name in names for each in parts(name)):
        stack = stack.in_place(lever)
    return stack


def _in_place(live: "Live", base: Configuration) -> Callable[[Lever, LeverCase], str | None]:
    """Why a lever on a case could not be applied to what lives, asked once for each setting."""
    from peakward.lab.levers.in_place import obstacle

    known: dict[Configuration, str | None] = {}
    kept = live.optimizer is None or is_adamw(live.optimizer)
    not_adamw = None if kept else type(live.optimizer).__name__

    def told(lever: Lever, _base: LeverCase) -> str | None:
        if not_adamw and "optimizer" in dict(lever.sets):
            return f"is a form of torch's AdamW, got {not_adamw}: choose its form where it is made"
        changed = with_settings(base, dict(lever.sets))
        if changed not in known:
            known[changed] = obstacle(live, changed, base)
        return known[changed]

    return told


def _stands_in(optimizer: "torch.optim.Optimizer") -> str | None:
    """Says that AdamW stands in for another optimizer on the copies, where it does; None for AdamW itself.

    It is the fused one: its passes over memory are the fewest, so that no finding is about an update that
    is not theirs."""
    if is_adamw(optimizer):
        return None
    return (
        f"The search steps with a fused AdamW in the place of {type(optimizer).__name__}, whose time and "
        "memory it does not know; only the proof in place has your optimizer."
    )
