"""What Python gets by `import peakward`: the command line's jobs as functions.

Cases and the studies of them are the same records, kept in the same database, so either door
finds what the other measured.
"""

import operator
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from peakward.cli import comparison, machine, options, session, values
from peakward.cli.model_names import model
from peakward.cli.reproduce import to_command
from peakward.cli.vocabulary import WorkOptions
from peakward.cli.watch import Watch as Quiet
from peakward.hardware.devices import device
from peakward.levers.catalogue import LEVERS, lever, with_settings
from peakward.models.presets import validate
from peakward.predictions import DB, floor, plan, plan_serving, predict
from peakward.records.calibration import Calibration
from peakward.records.case import (
    Case,
    Configuration,
    ConfiguredCase,
    DeviceType,
    ModelCase,
    ModuleCase,
    ModulePass,
    Pass,
    Workload,
)
from peakward.records.codec import as_read_back
from peakward.records.errors import PeakwardError
from peakward.records.finding import Diagnosis
from peakward.records.inference import ServingWorkload
from peakward.records.lever import NumericsClass
from peakward.records.measurement import Measurement
from peakward.records.model_shape import ModelShape
from peakward.records.protocol import Protocol
from peakward.records.study import Study
from peakward.records.trial import Objective
from peakward.report.watch import Announcer
from peakward.results import html, load, markdown
from peakward.store.database import Store
from peakward.tune.watch import Watch

if TYPE_CHECKING:
    import torch

    from peakward.traces.trace import Trace

__all__ = [
    "Configuration",
    "Measurement",
    "ModelCase",
    "ModelShape",
    "ModuleCase",
    "PeakwardError",
    "Protocol",
    "ServingWorkload",
    "Store",
    "Study",
    "Workload",
    "bench",
    "calibrate",
    "case",
    "compare",
    "device",
    "findings",
    "floor",
    "html",
    "investigate",
    "lever",
    "load",
    "markdown",
    "measure",
    "measure_step",
    "model",
    "module_case",
    "plan",
    "plan_serving",
    "predict",
    "run",
    "study",
    "watch",
]


def case(
    shape: str | ModelShape,
    *,
    batch_size: int,
    seq_len: int,
    pass_: Pass = "train_step",
    levers: Iterable[str] = (),
    accumulate: int = 1,
    memory_limit_bytes: int | None = None,
    device: DeviceType | None = None,
) -> ModelCase:
    """A pass of a model, with levers resolved into its configuration.

    Args:
        shape: a name that `model` knows, or a shape of your own.
        levers: names such as "bf16-mixed", or field=value settings such as "compile_scope=model".
        device: by default cuda where there is one.

    Raises:
        PeakwardError: as on the command line: an unknown name, two levers that set one field
            differently, or a shape, workload or memory limit that cannot be.
    """
    preset = model(shape) if isinstance(shape, str) else shape
    validate(preset)
    # As plain numbers: a record holds neither text nor another package's integers.
    batch_size, seq_len, accumulate = (
        values.whole(_digits(size, name), name, low=1, high=most)
        for size, name, most in (
            (batch_size, "batch_size", options.MAX_BATCH_SIZE),
            (seq_len, "seq_len", options.MAX_SEQ_LEN),
            (accumulate, "accumulate", options.MAX_ACCUMULATE),
        )
    )
    options.check_length(preset, seq_len)
    values.one_of(pass_, get_args(Pass), "a pass")
    if device is not None:
        values.one_of(device, get_args(DeviceType), "a device")
    if isinstance(levers, str):
        raise PeakwardError(f"expected a sequence of levers, got {levers!r}: write ({levers!r},)")
    return ModelCase(
        model=preset,
        workload=Workload(
            batch_size=batch_size, seq_len=seq_len, pass_=pass_, accumulate=accumulate
        ),
        configuration=with_settings(Configuration(), options.settings(levers, "levers")),
        device=machine.this_machine(None).device if device is None else device,
        memory_limit_bytes=_memory_limit(memory_limit_bytes),
    )


def module_case(
    source: str,
    *,
    batch_size: int,
    seq_len: int,
    pass_: ModulePass = "train_step",
    levers: Iterable[str] = (),
    memory_limit_bytes: int | None = None,
    device: DeviceType | None = None,
) -> ModuleCase:
    """A pass of a module of yours, which a worker process builds from its source.

    Args:
        source: "py:package.module:factory", importable from the working directory; or "hf:" and a
            configuration of transformers: a file, its folder, or "org/name" in the local cache.
        levers, memory_limit_bytes, device: as of `case`.

    Raises:
        PeakwardError: as `case`; or no such configuration. What is wrong with the module itself is
            told by what runs it.
    """
    sizes = {"batch_size": batch_size, "seq_len": seq_len}
    digits = {name: _digits(size, name) for name, size in sizes.items()}
    work = WorkOptions(model=source, pass_=pass_, **digits)
    if device is not None:
        values.one_of(device, get_args(DeviceType), "a device")
    where = machine.this_machine(None).device if device is None else device
    if isinstance(levers, str):
        raise PeakwardError(f"expected a sequence of levers, got {levers!r}: write ({levers!r},)")
    found = options.single(work, where, options.settings(levers, "levers"))
    if not isinstance(found, ModuleCase):
        raise PeakwardError(
            f"expected the source of a module, py: or hf:, got {source!r}: of a shape make a `case`"
        )
    return msgspec.structs.replace(found, memory_limit_bytes=_memory_limit(memory_limit_bytes))


def _memory_limit(limit_bytes: int | None) -> int | None:
    name = "memory_limit_bytes"
    if limit_bytes is None:
        return None
    return values.whole(_digits(limit_bytes, name), name, low=2**20, high=2**50)


def _digits(given: int, name: str) -> str:
    """Of an integer, also another package's; a record holds a plain one.

    Raises:
        PeakwardError: anything else, text that reads as an integer among it.
    """
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        raise PeakwardError(f"expected {name} as an integer, got {given!r}: give it as a number")
    return str(operator.index(given))


def measure(case: ConfiguredCase, protocol: Protocol | None = None) -> Measurement:
    """Measure one case in a worker process; nothing is stored. A failure is a status.

    Raises:
        PeakwardError: a value of another type than its field's; no such device here.
    """
    from peakward.lab.measure.isolated import Workers

    case, protocol = as_read_back(case), as_read_back(protocol or Protocol())
    with Workers() as workers:
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
    from peakward.lab.measure import in_process

    return in_process.measure_step(step, name=name, model=model, optimizer=optimizer, **settings)


def calibrate(device: DeviceType | None = None, *, db: str = DB) -> Calibration:
    """Measure this machine's ceilings, rates and launch costs, and store them.

    `peakward devices calibrate`: under 90 s on a GPU, under 30 s on two CPU cores.
    """
    from peakward.lab.measure.calibration.full import calibrate_in_full

    here = machine.this_machine(device)
    with session.opened(db, here, Quiet()) as opened:
        measured = calibrate_in_full(opened.sweep.workers, here.device)
        opened.store.add_calibration(measured)
    return measured


def findings(trace: "Trace") -> Diagnosis:
    """What holds a trace back, and what could not be judged from it alone: `peakward trace`."""
    from peakward.trace_files import diagnosis

    return diagnosis(trace)


def watch(
    *,
    every: int = 100,
    n_steps: int = 3,
    on_findings: Callable[[Diagnosis], object] | None = None,
    with_stack: bool = False,
) -> Watch:
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
    return Watch(
        every=every,
        n_steps=n_steps,
        with_stack=with_stack,
        on_findings=Announcer() if on_findings is None else on_findings,
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
    db: str = DB,
) -> Study:
    """Find what makes the case faster, or what else is sought: `peakward run`; or a live module, in this
    process.

    A live module is never run itself nor changed: each lever has a copy of it. Random states and torch's
    settings are put back.

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

    Raises:
        PeakwardError: a setting of the case or a named lever that cannot apply here.
    """
    from peakward.cli.run import aim, allowed, seconds_of
    from peakward.tune.investigation import Investigation
    from peakward.tune.run import investigate as investigated

    if isinstance(levers, str):
        raise PeakwardError(f"expected a sequence of levers, got {levers!r}: write ({levers!r},)")
    device = case.device if isinstance(case, ConfiguredCase) else None
    here = machine.this_machine(device)
    most = None if max_memory_bytes is None else repr(max_memory_bytes / values.GIB)
    sought = aim(objective, most, numerics, here)
    if not isinstance(case, ConfiguredCase):
        from peakward.live_modules import run_module

        return run_module(
            case,
            batch,
            loss=loss,
            pass_=pass_,
            levers=levers,
            budget_s=budget_s,
            sought=sought,
            db=db,
        )
    if batch is not None or loss is not None:
        raise PeakwardError(
            "expected no batch or loss beside a case, got one: its workload says both"
        )
    case = as_read_back(case)
    budget_s = seconds_of(budget_s, case.device)
    machine.runnable((case,), here)
    named = None if levers is None else allowed(options.levers(levers), case, here, sought)
    asked = Investigation(
        case=case,
        levers=LEVERS if named is None else named,
        budget_s=budget_s,
        command=_run_command(case, levers, budget_s)
        + _aim_words(objective, max_memory_bytes, numerics),
        obstacle=lambda lever, base: machine.lever_obstacle(lever, base, here),
        to_command=to_command,
        aim=sought,
    )
    with session.opened(db, here, Quiet()) as opened:
        machine.expect_sound(case, opened.sweep, budget_s)
        return investigated(
            asked,
            opened.sweep,
            opened.store,
            on_stage=lambda _stage: None,
            on_prediction=lambda _floor, _forecast, _fitting: None,
        )


def investigate(
    step: Callable[..., object],
    *,
    name: str | None = None,
    model: "torch.nn.Module | None" = None,
    optimizer: "torch.optim.Optimizer | None" = None,
    loader: Iterable[Any] | None = None,
    tokens_per_step: float | None = None,
    budget_s: float | None = None,
    db: str = DB,
) -> Study:
    """Find what holds back a training step given as a function, and what makes it faster; in this process.

    What can be set around a call is tried: tf32, and the kernels of torch's attention. Everything else is
    named with what to change. Parameters, optimiser, random states, the loader's generators and torch's
    settings are as before afterwards; what else the step touches is not put back.

    Args:
        step: runs one whole step, again and again; called with the loader's next batch where there is one.
        name: for the report; the function's without.
        model: what the step trains. Without it what is trained stays trained, and no lever's numbers can
            be verified, so that none is kept.
        optimizer: what the step steps.
        loader: a DataLoader, or another iterable that can be begun again; the wait for it is in the step
            and timed apart.
        tokens_per_step: for rates.
        budget_s, db: as of `run`.

    Raises:
        PeakwardError: a step that raises, that does other work at each call, or that is compiled or
            captured already; a loader that ends; a setting that cannot be.
    """
    from peakward.live_steps import investigate_step

    return investigate_step(
        step,
        name=name,
        model=model,
        optimizer=optimizer,
        loader=loader,
        tokens_per_step=tokens_per_step,
        budget_s=budget_s,
        db=db,
    )


def bench(
    cases: Sequence[ConfiguredCase], protocols: Sequence[Protocol] = (Protocol(),), *, db: str = DB
) -> Study:
    """Measure every case by every protocol: `peakward bench`. What `db` holds is not run again."""
    from peakward.studies.bench import bench as measured
    from peakward.studies.bench import planned

    if not cases or not protocols:
        raise PeakwardError(
            f"expected a case and a protocol to measure it by, got no {'protocol' if cases else 'case'}"
        )
    cases, protocols = tuple(map(as_read_back, cases)), tuple(map(as_read_back, protocols))
    devices = {each.device for each in cases}
    if len(devices) != 1:
        raise PeakwardError(
            f"expected cases of one device, got {len(cases)} of {len(devices)}: "
            "run one bench for each device"
        )
    here = machine.this_machine(cases[0].device)
    kept, reasons = machine.runnable(tuple(cases), here)
    with session.opened(db, here, Quiet()) as opened:
        machine.check_modules(planned(kept, protocols), opened.sweep)
        return measured(
            opened.sweep,
            kept,
            protocols,
            command="\n".join(_command(each) for each in kept),
            calibration=opened.store.calibration(here.environment.key),
            notes=reasons,
        )


def study(
    name: str, *, full: bool = False, device: DeviceType | None = None, db: str = DB
) -> Study:
    """Carry out a study: `peakward study NAME`."""
    from peakward.studies.execute import execute
    from peakward.studies.registry import study_entry
    from peakward.studies.scope import Scope, default_scope

    known = study_entry(name)
    here = machine.this_machine(device)
    scope = Scope("full") if full else default_scope(here.device)
    words = (["--full"] if full else []) + ([] if device is None else ["--device", device])
    with session.for_studies((known.name,), db, here, Quiet()) as opened:
        return execute(
            name,
            opened.sweep,
            scope,
            command=shlex.join(["peakward", "study", name, *words]),
            calibration=opened.store.calibration(here.environment.key),
        )


def compare(before: Study, after: Study, *, threshold: float = 0.03, across: bool = False) -> Study:
    """The cases that two studies share, judged: `peakward compare`.

    Raises:
        PeakwardError: the environments differ (unless `across`), no case was measured in both, or a
            threshold that is no share.
    """
    values.share(str(threshold), "threshold")
    comparison.refuse_to_mix(before, after, across=across)
    found = comparison.changes(before, after, threshold=threshold)
    command = f"peakward compare {before.id} {after.id} --threshold {threshold}"
    command += " --across" if across else ""
    return comparison.study(before, after, found, threshold=threshold, command=command)


def _command(case: Case) -> str:
    """For the record: the line that measures the case, or why there is none."""
    return to_command(case) or "# from Python: no option of the command line says this case"


def _run_command(case: ConfiguredCase, levers: Sequence[str] | None, budget_s: float) -> str:
    command = _command(case).replace("peakward bench", "peakward run", 1)
    chosen = "" if levers is None else f" --lever {','.join(levers)}"
    return f"{command}{chosen} --budget {budget_s:g}s"


def _aim_words(objective: Objective, max_memory_bytes: int | None, numerics: NumericsClass) -> str:
    words = "" if objective == "latency" else f" --objective {objective}"
    if max_memory_bytes is not None:
        words += f" --max-memory {max_memory_bytes / values.GIB!r}"
    return words + ("" if numerics == "approximate" else f" --numerics {numerics}")
