"""Find what makes a model faster here: baseline, levers, verdicts."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import tyro

from peakward.api import sharing
from peakward.api.cases import is_source, with_own_weights
from peakward.api.investigating import (
    DEFAULT_BUDGET_S,
    aim,
    carry_out,
    investigation,
    real_model_of,
)
from peakward.api.machine import Machine, this_machine
from peakward.api.measuring import MAX_RANKS
from peakward.api.reproduce import to_command
from peakward.api.sharing import asked_of_torchrun
from peakward.cli import options, output, parse, watch
from peakward.cli.vocabulary import CaseOptions, Cases, ResultOptions, Results, option
from peakward.records import check
from peakward.records.case import LeverCase, ModelCase
from peakward.records.errors import PeakwardError
from peakward.records.plan import DryRun, Forecast, PlannedStep
from peakward.records.prediction import Prediction
from peakward.records.study import Study
from peakward.report import dry_run
from peakward.report.format import format_cell, format_spread
from peakward.report.run.investigation import read
from peakward.store import artefacts
from peakward.tune.dry_run import planned
from peakward.tune.investigation import Investigation
from peakward.tune.patching import of_study

NOT_SHARED = {
    "lever": (),
    "objective": "latency",
    "max_memory": None,
    "numerics": "approximate",
    "real_model": None,
    "write_patch": None,
}
"""The options of levers, with their defaults: layouts are none."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Find what makes a model faster here: baseline, levers, verdicts.

    Measures this machine's ceilings and the baseline, tries the levers one by one and then on top
    of one another, confirms in pairs what gained, and says which gains were confirmed, what was rejected
    and which command reproduces the best composition. Interrupted, the same command resumes.

    With --pass decode it starts from a loop without a cache (--kv-cache none), where that is not said.

    With --gpus N, or under torchrun on one machine, it finds how N GPUs should share a training step:
    data parallelism, ZeRO-1 and 2, FSDP, tensor and pipeline parallelism, and from four on products of
    two. Each rank brings the batch of one. It starts from bf16-mixed, sdpa, compiled blocks and the
    fused optimiser, where nothing else is said. Without a GPU the ranks are processes over gloo.
    """

    baseline: Annotated[str | None, option("SETTING,…", "fp32, naive attention, eager")] = None
    """Your own configuration as the start: levers and field=value settings, such as
    bf16-mixed,sdpa,compile_scope=model."""
    lever: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]],
        option("NAME,…", "all that apply here; repeatable"),
    ] = ()
    """Try these levers alone."""
    budget: Annotated[
        str | None,
        tyro.conf.arg(metavar="TIME", help_behavior_hint="(default: 15m; on a CPU 100s)"),
    ] = None
    """How long it may take, as 90s, 5m or 1h: what has not ended then is ended, and the report says what
    was left and how to go on. The baseline is measured however little it is, in up to a minute."""
    objective: Annotated[str, option("NAME", "latency")] = "latency"
    """The quantity to improve: latency (the shortest step), throughput (the same levers, then larger
    batches), memory (the least peak), or energy (the least joules of a step, on a GPU)."""
    max_memory: Annotated[str | None, option("GIB", "none")] = None
    """Keep nothing whose peak is above this many GiB; while the start is above it, seek memory. The
    start itself runs all the same, which it does not under --memory-limit."""
    numerics: Annotated[str, option("CLASS", "approximate")] = "approximate"
    """Try no lever that changes the numbers more: exact, reordered or approximate (all levers)."""
    real_model: Annotated[str | None, option("NAME", "--model, where its folder has weights")] = (
        None
    )
    """A real model of --model's shape, as generate takes it: smollm2 (--model smollm2-135m), a folder with
    safetensors, ORG/NAME in the local cache, a .gguf file. No lever that keeps weights or a cache in fewer
    bits is kept that loses too much of it on real text; with random weights that cannot be told."""
    write_patch: Annotated[str | None, option("FILE", "none")] = None
    """Write the best as a diff of the files that make the model, for `patch -p1` or `git apply`. The patched
    files are first run beside the best, in turns, which takes a minute or more beyond the budget. Needs a
    model py:package.module:factory."""
    gpus: Annotated[str, option("N", "1; under torchrun its ranks")] = "1"
    """How many GPUs of this machine share the step."""
    dry_run: bool = False
    """List what would be run and how long it should take; run nothing."""
    case: Cases = CaseOptions()
    """The case to run: one value an option. Configuration options change the start."""
    results: Results = ResultOptions()


def main(given: Options, command: str) -> int:
    """Carry out the investigation and show it. Its time begins before torch is imported."""
    began_s = time.monotonic()
    ranks = asked_of_torchrun()
    if ranks == 0:
        return 0
    n_gpus = parse.whole(given.gpus, "--gpus", low=1, high=MAX_RANKS)
    if ranks is not None and n_gpus not in (1, ranks):
        raise PeakwardError(
            f"expected --gpus as torchrun has ranks, {ranks}, got {n_gpus}: leave it out"
        )
    here = this_machine(given.case.device)
    if (ranks or n_gpus) > 1:
        return _share(given, ranks or n_gpus, here, command, began_s)
    asked = _asked(given, here, command)
    targets = output.targets(given.results)
    expect_patchable(given.write_patch, given.case.model, overwrite=given.results.force)
    if given.dry_run:
        plan = _dry_run(asked, here, given.results.db)
        output.show(plan, targets, as_json=given.results.json, document=dry_run.document(plan))
        return 0
    with watch.budget("run", asked.budget_s) as watching:
        study = carry_out(
            asked,
            here,
            Path(given.results.db),
            watching,
            on_stage=watching.on_stage,
            on_prediction=lambda floor, forecast, fitting: watching.say(
                expectation(asked.case, floor, forecast, fitting)
            ),
            began_s=began_s,
        )
    try:
        study = _with_patch(study, given)
    finally:
        output.show_study(study, targets, as_json=given.results.json)
    if study.interrupted:
        raise KeyboardInterrupt
    return 0


def _share(given: Options, n_ranks: int, here: Machine, command: str, began_s: float) -> int:
    """Finds how several GPUs should share the step."""
    for name, default in NOT_SHARED.items():
        if getattr(given, name) != default:
            raise PeakwardError(
                f"expected no --{name.replace('_', '-')} beside --gpus {n_ranks}, got one: leave it out, or "
                "run on one GPU"
            )
    said = options.settings([given.baseline], "--baseline") if given.baseline is not None else {}
    case = options.single(given.case, here.device, sharing.start(given.case, said, here.device))
    case = sharing.expect_sharable(case)
    budget_s = _budget_s(given, here)
    targets = output.targets(given.results)
    if given.dry_run:
        plan = sharing.dry_run(case, n_ranks, budget_s=budget_s, command=command)
        output.show(plan, targets, as_json=given.results.json, document=dry_run.document(plan))
        return 0
    with watch.budget("run", budget_s) as watching:
        study = sharing.share(
            case,
            n_ranks,
            here,
            Path(given.results.db),
            budget_s=budget_s,
            command=command,
            observer=watching,
            on_stage=watching.on_stage,
            began_s=began_s,
        )
    output.show_study(study, targets, as_json=given.results.json)
    if study.interrupted:
        raise KeyboardInterrupt
    return 0


def _budget_s(given: Options, here: Machine) -> float:
    if given.budget is None:
        return DEFAULT_BUDGET_S[here.device]
    return check.duration_s(given.budget, "--budget")


def expect_patchable(place: str | None, model: str | None, *, overwrite: bool) -> None:
    """Refuse a patch that could not be made or written, before anything is run for it.

    Raises:
        PeakwardError: a file that exists (without --force), a place that cannot be written, or a model that
            no file of the user's makes.
    """
    if place is None:
        return
    artefacts.check(Path(place), overwrite=overwrite, by="--force")
    if model is None or not model.startswith("py:"):
        raise PeakwardError(
            f"expected --model py:package.module:factory beside --write-patch, got {model}: no file of yours "
            "makes that model; the report has the lines"
        )


def _with_patch(study: Study, given: Options) -> Study:
    """The study with its patch, which is written, where one was asked for and a lever was kept.

    Raises:
        PeakwardError: as `of_study`.
    """
    if given.write_patch is None or study.interrupted:
        return study
    if read(study).best is None:
        said = f"No patch was written to {given.write_patch}: no gain was confirmed."
        return msgspec.structs.replace(study, notes=(*study.notes, said))
    found = of_study(study)
    if found.text:
        artefacts.write(Path(given.write_patch), found.text.encode())
        found = msgspec.structs.replace(found, written_to=given.write_patch)
    return msgspec.structs.replace(study, patch=found)


def _asked(given: Options, here: Machine, command: str) -> Investigation:
    """Reads the options and checks them against this machine."""
    start = options.settings([given.baseline], "--baseline") if given.baseline is not None else {}
    is_decoder = given.case.model is None or not is_source(given.case.model)
    if is_decoder and given.case.pass_ == "decode" and given.case.kv_cache is None:
        start = {"kv_cache": "none", **start}
    case = options.single(given.case, here.device, start)
    limit = given.max_memory
    sought = aim(
        given.objective,
        None if limit is None else parse.memory_bytes(limit, "--max-memory"),
        given.numerics,
        here,
    )
    names = [name for text in given.lever for name in parse.split(text, "--lever")]
    reads = given.real_model
    if reads is None and isinstance(case, ModelCase) and not case.workload.trains:
        reads = with_own_weights(given.case.model)
    asked = investigation(
        case,
        names or None,
        here,
        budget_s=_budget_s(given, here),
        sought=sought,
        command=command,
        to_command=lambda best: to_command(best, given.case.model),
    )
    if reads is None:
        return asked
    return msgspec.structs.replace(asked, real_model=real_model_of(reads, case))


def _dry_run(asked: Investigation, here: Machine, db: str) -> DryRun:
    from peakward.store.database import Store

    calibration = None
    if Path(db).exists():
        with Store.open_read_only(Path(db)) as store:
            calibration = store.calibration(here.environment.key)
    return DryRun(
        command=asked.command,
        steps=tuple(
            PlannedStep(what=what, predicted_s=cost_s)
            for what, cost_s in planned(asked, here.environment, calibration)
        ),
        budget_s=asked.budget_s,
    )


def expectation(
    case: LeverCase,
    floor: Prediction | None,
    forecast: Forecast | None,
    fitting: Sequence[str],
) -> str:
    """Says before anything is measured what the machine allows and what is predicted; `fitting` are the
    levers each of which makes fit what does not."""
    said = [_ceiling(case, floor)]
    if forecast is not None and forecast.step_s is not None:
        said.append(f"predicted {format_spread(forecast.step_s, 's')}")
    if forecast is not None and forecast.needed_bytes is not None:
        said.append(_memory(forecast, forecast.needed_bytes, fitting))
    return "; ".join(said)


def _memory(forecast: Forecast, needed_bytes: int, fitting: Sequence[str]) -> str:
    needed = f"{format_cell(needed_bytes, 'bytes')} of memory"
    if forecast.fits is not False:
        return needed
    there_is = f"{needed}, which does not fit {format_cell(forecast.limit_bytes, 'bytes')}"
    return f"{there_is}, but would with {' or '.join(fitting)}" if fitting else there_is


def _ceiling(case: LeverCase, prediction: Prediction | None) -> str:
    """Says before anything is measured what the machine allows."""
    if prediction is None:
        return "no floor: what the maths of a module needs is not known"
    if prediction.floor_s is None:
        return f"no floor: the {prediction.compute_type} matmul rate of this machine is unknown"
    assert case.tokens_per_step is not None
    tokens_per_s = case.tokens_per_step / prediction.floor_s
    return (
        f"at most {format_cell(tokens_per_s, 'tokens_per_s')}: "
        f"a step's floor here is {format_cell(prediction.floor_s, 's')}"
    )
