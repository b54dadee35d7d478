"""Carry out a study: its grid, tables, plots and conclusions."""

import shlex
import sys
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, get_args

import msgspec
import tyro

from peakward.api.cases import MAX_BATCH_SIZE, MAX_SEQ_LEN, check_length
from peakward.api.machine import Machine, runnable, this_machine
from peakward.api.measuring import studies
from peakward.cli import options, output, watch
from peakward.cli.parse import parse, split, whole
from peakward.cli.vocabulary import (
    ResultOptions,
    Results,
    ShapeOptions,
    Shapes,
    option,
)
from peakward.levers.workload import workers_obstacle
from peakward.records import check
from peakward.records.case import Case, Configuration, ModelCase, Precision, Workload
from peakward.records.errors import PeakwardError
from peakward.records.measurement import Environment
from peakward.records.study import Column, Studies, Table
from peakward.report import study
from peakward.report.document import Document, TableBlock
from peakward.studies import registry
from peakward.studies.attention_arms import PRECISIONS
from peakward.studies.scope import Scope, default_scope, grid
from peakward.studies.setting import read_setting

MAX_WORKERS = 1024
"""The most workers that an option takes; how many are sensible depends on the machine."""
_OPTIONS = {
    "models": "--model",
    "seq_lens": "--seq-len",
    "batch_size": "--batch-size",
    "precisions": "--precision",
    "limits_bytes": "--memory-limit",
    "timeout_s": "--timeout",
    "text": "--data",
    "tokenizer": "--tokenizer",
    "workers": "--workers",
}


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Carry out a study: its grid, tables, plots and conclusions.

    Without a name it lists the studies. The grid is small on a CPU and the corners of the full one
    on a GPU. Ctrl-C ends the case that is being measured, twice within two seconds the study; the same
    command resumes. What has no cases (hierarchy, scaling) is always whole.
    """

    name: Annotated[str | None, tyro.conf.Positional, option("NAME", "list them")] = None
    """The study."""
    all: bool = False
    """Every study, as one report."""
    full: bool = False
    """The whole grid."""
    seq_len: Annotated[str | None, option("N,…", "the grid's")] = None
    """Sequence lengths."""
    batch_size: Annotated[str | None, option("N", "the grid's")] = None
    """Batch size."""
    precision: Annotated[str | None, option("NAME,…", "the study's")] = None
    """Precisions; with --all a study that has none of them takes its own."""
    memory_limit: Annotated[str | None, option("GIB,…", "the study's")] = None
    """Memory limits in GiB, for a study of what fits."""
    timeout: Annotated[str | None, option("TIME", "10m")] = None
    """Longest time for one case, as 90s or 5m."""
    data: Annotated[str | None, option("PATH|NAME", "python-topics")] = None
    """Text to load: python-topics, kjv, shakespeare, a file in UTF-8 or a folder of .txt and .md files."""
    tokenizer: Annotated[str | None, option("NAME|FILE", "bpe where its package is")] = None
    """How that text is tokenised: bytes, bpe (learned from it), gpt2, or a Hugging Face tokenizer.json."""
    workers: Annotated[str | None, option("N,…", "the study's")] = None
    """Processes that load text; 0 is none."""
    device: Annotated[str | None, option("cpu|cuda", "cuda where there is one")] = None
    """Where it runs."""
    shape: Shapes = ShapeOptions()
    """Models, in place of the grid's."""
    results: Results = ResultOptions()


def main(given: Options, command: str) -> int:
    """List the studies, or carry out one or all."""
    if given.name is None and not given.all:
        _list(as_json=given.results.json)
        return 0
    if given.name is not None and given.all:
        raise PeakwardError(f"expected one study or --all, got {given.name} and --all")
    names = tuple(registry.STUDIES) if given.name is None else (given.name,)
    specifications = [registry.specification(name) for name in names]
    here = this_machine(given.device)
    scope = _scope(given, here)
    _refuse_unused(names, scope, given)
    _refuse_unfit(scope, here)
    _refuse_unstudied(given.name, scope, here)
    setting = read_setting(here.environment, scope)
    planned = [case for each in specifications for case, _ in each.plan(setting)]
    _prepare_text(planned)
    targets = output.targets(given.results)
    with watch.cases("study", (), total=len(planned)) as watching:
        found = studies(
            names, scope, here, Path(given.results.db), command=command, observer=watching
        )
    document = study.together([study.document(each) for each in found])
    record = found[0] if given.name is not None else Studies(studies=found)
    output.show(record, targets, as_json=given.results.json, document=document)
    if not found[-1].complete:
        raise KeyboardInterrupt
    return 0


def asked_scope(command: str, environment: Environment) -> Scope:
    """The scope that the line of a stored study asked for, on the machine where it ran.

    Raises:
        PeakwardError: it is no line of `peakward study`, or names a file that is not here.
    """
    words = shlex.split(command)
    if words[:2] != ["peakward", "study"]:
        raise PeakwardError(f"expected a line of `peakward study`, got {command!r}")
    given = parse(Options, words[2:], prog="peakward study")
    if given is None:
        raise PeakwardError(f"expected a line that measures, got {command!r}")
    there = Machine(environment=environment, compute_capability=None, has_compiler=True)
    return _scope(given, there)


def _scope(given: Options, here: Machine) -> Scope:
    scope = Scope("full") if given.full else default_scope(here.device)
    wanted: dict[str, object] = {}
    if any(value is not None for value in msgspec.structs.astuple(given.shape)):
        wanted["models"] = options.shapes(given.shape, options.DEFAULTS[here.device].model)
    if given.seq_len is not None:
        lengths = options.sizes(given.seq_len, "--seq-len", MAX_SEQ_LEN)
        # Studies tell of the shortest and the longest by their place.
        wanted["seq_lens"] = tuple(sorted(lengths))
    if given.batch_size is not None:
        wanted["batch_size"] = whole(given.batch_size, "--batch-size", low=1, high=MAX_BATCH_SIZE)
    if given.precision is not None:
        wanted["precisions"] = tuple(
            check.one_of(name, get_args(Precision), "a value of --precision")
            for name in split(given.precision, "--precision")
        )
    if given.memory_limit is not None:
        wanted["limits_bytes"] = tuple(options.memory_limits(given.memory_limit))
    if given.timeout is not None:
        wanted["timeout_s"] = check.duration_s(given.timeout, "--timeout")
    if given.data is not None:
        from peakward.lab.data import text

        wanted["text"] = text.source(given.data)
    if given.tokenizer is not None:
        from peakward.lab.data import tokenizer

        wanted["tokenizer"] = tokenizer.source(given.tokenizer)
    if given.workers is not None:
        wanted["workers"] = _workers(given.workers, here.environment.n_cores)
    return msgspec.structs.replace(scope, **wanted)


def _workers(given: str, n_cores: int) -> tuple[int, ...]:
    """The numbers of `--workers`.

    Raises:
        PeakwardError: no whole number, or more than is sensible on so many cores.
    """
    found = []
    for item in split(given, "--workers"):
        n = whole(item, "--workers", low=0, high=MAX_WORKERS)
        reason = workers_obstacle(n, n_cores)
        if reason is not None:
            raise PeakwardError(reason)
        found.append(n)
    return tuple(found)


def _prepare_text(cases: Iterable[Case]) -> None:
    """Tokenise what the cases will read, which is kept for them.

    Raises:
        PeakwardError: a tokenizer that is not installed or has more tokens than a model, or text
            shorter than a sequence.
    """
    from peakward.lab.data.tokens import prepare

    read = {
        (work.data.text, work.data.tokenizer, case.model.vocab_size, work.seq_len): work.data
        for case in cases
        if isinstance(case, ModelCase) and (work := case.workload).data is not None
    }
    for (_, _, vocab_size, seq_len), data in read.items():
        prepare(data, vocab_size=vocab_size, seq_len=seq_len)


def _refuse_unused(names: Sequence[str], scope: Scope, given: Options) -> None:
    """Refuse what none of the studies uses: what was asked for is never dropped without a word."""
    for field, option_name in _OPTIONS.items():
        value = getattr(scope, field)
        n_given = len(value) if isinstance(value, tuple) else int(value is not None)
        most = [getattr(registry.STUDIES[name].uses, field) for name in names]
        if None not in most and n_given > max(most):
            said = f"at most {max(most)} of" if max(most) else "no"
            raise PeakwardError(
                f"expected {said} {option_name} for {' and '.join(names)}, got "
                f"{_as_given(given, option_name)}: leave out what goes unused"
            )


def _as_given(given: Options, option_name: str) -> str:
    """The option's value as it was written; for models that only their sizes describe, these options."""
    values = msgspec.structs.asdict(given.shape) | msgspec.structs.asdict(given)
    value = values[option_name.removeprefix("--").replace("-", "_")]
    if value is not None:
        return str(value)
    sizes = msgspec.structs.asdict(given.shape)
    return " ".join(
        f"--{name.replace('_', '-')} {size}" for name, size in sizes.items() if size is not None
    )


def _refuse_unfit(scope: Scope, here: Machine) -> None:
    """Refuse precisions that cannot apply here, and lengths that a model does not accept."""
    sizes = grid(scope)
    for shape, seq_len in product(sizes.models, sizes.seq_lens):
        check_length(shape, seq_len)
    for precision in scope.precisions:
        case = ModelCase(
            model=sizes.models[0],
            workload=Workload(batch_size=sizes.batch_size, seq_len=sizes.seq_lens[0]),
            configuration=Configuration(precision=precision),
            device=here.device,
        )
        runnable((case,), here)


def _refuse_unstudied(name: str | None, scope: Scope, here: Machine) -> None:
    """Refuse precisions that a study of attention by itself does not have; among others it has its own."""
    if name not in {"attention", "flash"}:
        return
    there = PRECISIONS[here.device]
    for each in scope.precisions:
        if each not in there:
            raise PeakwardError(
                f"expected a --precision of {' or '.join(there)} for {name} on {here.device}, got {each}"
            )


def _list(*, as_json: bool) -> None:
    if as_json:
        told = [
            {"name": each.name, "question": each.question, "measures": each.measures}
            for each in registry.STUDIES.values()
        ]
        sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
        return
    rows = tuple((entry.name, entry.question) for entry in registry.STUDIES.values())
    columns = (Column(name="study", unit="name"), Column(name="what it answers"))
    output.print_document(
        Document(
            title="Studies",
            headline="`peakward study NAME` carries one out, `--all` every one",
            blocks=(TableBlock(table=Table(title="", columns=columns, rows=rows)),),
        )
    )
