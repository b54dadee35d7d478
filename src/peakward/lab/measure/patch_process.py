"""A process that builds a factory's module as its files are, and as they would be:
`python -m peakward.lab.measure.patch_process ANSWER`.
"""

import gc

if __name__ == "__main__":
    gc.disable()  # While it imports, as `worker.py` has it.

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import msgspec
import torch

from peakward.kernels.ops.loss.api import implementation
from peakward.lab.data.feed import Resident
from peakward.lab.levers.configured_step import ConfiguredStep
from peakward.lab.levers.module_step import DrawnTokens, GivenBatch, ModuleStep, prepared_module
from peakward.lab.measure import failure, jobs
from peakward.lab.measure.messages import TurnsRequest
from peakward.lab.measure.patch_check import Ask, Built, Compared, Refused
from peakward.lab.measure.site import Site
from peakward.lab.models import module_source, python_source
from peakward.lab.models.callers_compilation import CallersCompilation
from peakward.lab.models.given_module import (
    GivenModule,
    blocks_of,
    files_of,
    given_as_is,
    held_in_bf16,
    is_of_working_directory,
    keeps_buffers,
    repeated_blocks,
)
from peakward.lab.numerics.judge import Outputs, judge, outputs
from peakward.lab.numerics.of_module import MAX_LAYERS, few_tokens, of_module
from peakward.levers.precision import fp32_matmuls
from peakward.records.case import Case, ConfiguredCase, ModuleCase
from peakward.records.errors import PeakwardError
from peakward.records.lever import Claim

PATCHED = "patched"
"""In the place of a fingerprint: the case of patched files."""


def main() -> None:
    """Answers the question on stdin, into the file that is named."""
    ask = msgspec.json.decode(sys.stdin.buffer.read(), type=Ask)
    try:
        answer: Built | Compared | Refused = _compared(ask) if ask.files else _built(ask.case)
    except BaseException as error:  # noqa: BLE001  a user's code may raise anything
        answer = Refused(reason=failure.of_exception(error).reason)
    Path(sys.argv[1]).write_bytes(msgspec.json.encode(answer))


def _built(case: ModuleCase) -> Built:
    module_source.expect_unchanged(case)
    path = case.source.partition(":")[2]
    code = _code(path)
    made = _made(case)
    module = given_as_is(made).module
    compilation = CallersCompilation(module)
    if compilation.is_around:
        raise PeakwardError(
            f"expected a factory that compiles in place, by .compile(), for a patch, got {path}, which "
            "returns what torch.compile made of its module: lines reach the module alone"
        )
    kind = "module" if made is module else "tuple" if isinstance(made, tuple) else "object"
    return Built(
        made=kind,  # type: ignore[arg-type]
        blocks=blocks_of(module),
        keeps_buffers=keeps_buffers(module),
        compiled=compilation.scope,
        in_bf16=held_in_bf16(module),
        file=code[0],
        name=code[1],
        line=code[2],
        modules=files_of(module),
    )


def _code(path: str) -> tuple[str, str, int]:
    """The file, the name and the first line of the factory's code, under what decorates it.

    Raises:
        PeakwardError: its code is not that of one function or class of that name.
    """
    found: Any = inspect.unwrap(python_source.factory(path))
    wanted = path.rpartition(":")[2].rpartition(".")[2]
    if isinstance(found, type):
        file, name = inspect.getsourcefile(found) or "", found.__name__
        return str(Path(file).resolve()), name, inspect.getsourcelines(found)[1]
    code: Any = getattr(getattr(found, "__func__", found), "__code__", None)
    if not isinstance(code, CodeType) or code.co_name not in (wanted, "<lambda>"):
        raise PeakwardError(
            f"expected {path} to be a function of that name, got {type(found).__name__}: let a `def` make "
            "the module"
        )
    return str(Path(code.co_filename).resolve()), code.co_name, code.co_firstlineno


def _made(case: ModuleCase) -> object:
    work = case.workload
    return python_source.made(
        case.source.partition(":")[2],
        batch_size=work.batch_size,
        seq_len=work.seq_len,
        device=case.device,
        seed=work.seed,
    )


def _compared(ask: Ask) -> Compared:
    patched = msgspec.structs.replace(ask.case, configuration=ask.base, fingerprint=PATCHED)
    files = {Path(path): content for path, content in ask.files.items()}

    def build(case: ModuleCase) -> GivenModule:
        return replace(module_source.build(case), in_fp8=ask.in_fp8)

    subject = of_module(ask.case, build)

    def of_either(case: ConfiguredCase, n_trained: int) -> Outputs:
        if case == ask.case:
            return subject.outputs(case, n_trained)
        with _patched(files), _finished(patched, reduced=True) as step:
            return outputs(step, n_trained)

    same = msgspec.structs.replace(ask.case, fingerprint=PATCHED)
    claim = Claim(base=ask.case, candidate=same, declared="reordered")
    (numerics,) = judge(subject._replace(outputs=of_either), [claim])

    @contextmanager
    def prepare(case: Case) -> Iterator[ModuleStep]:
        assert isinstance(case, ModuleCase)
        if case.fingerprint == PATCHED:
            with _patched(files), _finished(case) as step:
                yield step
            return
        with prepared_module(case, build(case)) as step:
            yield step

    # There and back, so that what drifts is in both.
    pair = (ask.case, patched)
    cases = tuple(
        each for n in range(ask.n_rounds) for each in (pair if n % 2 == 0 else pair[::-1])
    )
    bench = jobs.Bench(Site(), prepare, lambda _event: None)
    turns = jobs.time_turns(TurnsRequest(cases=cases, protocol=ask.protocol), bench).turns
    times = [(case, turn.median_s) for case, turn in zip(cases, turns, strict=True)]
    return Compared(
        numerics=numerics,
        best_s=tuple(time_s for case, time_s in times if case is ask.case),
        patched_s=tuple(time_s for case, time_s in times if case is patched),
    )


class FinishedStep(ModuleStep):
    """Steps of a module that has its levers already: it is moved, and neither cast nor wrapped."""

    def __init__(self, case: ModuleCase, given: GivenModule) -> None:
        module = given.module.to(case.device)
        blocks = repeated_blocks(module)
        self.n_blocks = 0 if blocks is None else len(blocks)
        self._calls = (
            GivenBatch(given, None if case.configuration.precision == "bf16" else torch.float32)
            if given.vocab_size is None
            else DrawnTokens(given, implementation(case.configuration.loss))
        )
        batches = self._calls.batches(case.workload, case.device)
        ConfiguredStep.__init__(self, case, module, Resident(batches))


@contextmanager
def _finished(case: ModuleCase, *, reduced: bool = False) -> Iterator[FinishedStep]:
    """The step; reduced as `of_module` reduces it, for its numbers."""
    with fp32_matmuls("fp32"):
        given = given_as_is(_made(case))
        if reduced:
            blocks = repeated_blocks(given.module)
            if blocks is not None:
                del blocks[MAX_LAYERS:]
            work = few_tokens(case.workload) if given.vocab_size is not None else case.workload
            case = msgspec.structs.replace(case, workload=work)
        step = FinishedStep(case, given)
        if reduced:
            step.model.eval()
        try:
            yield step
        finally:
            step.release()


@contextmanager
def _patched(files: Mapping[Path, bytes]) -> Iterator[None]:
    """While it lasts, the user's modules are imported anew, with this content in these files."""
    kept = {name: each for name, each in sys.modules.items() if _is_imported(each)}
    finder = Overlay(files)
    for name in kept:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name, each in sys.modules.items() if _is_imported(each)]:
            del sys.modules[name]
        sys.modules.update(kept)


def _is_imported(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return (
        module.__name__ != "__main__"
        and file is not None
        and is_of_working_directory(Path(file).resolve())
    )


class Overlay(MetaPathFinder):
    """Finds modules as Python does, with other content in some of their files."""

    def __init__(self, files: Mapping[Path, bytes]) -> None:
        self._files = files

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module in one of the files; None leaves it to Python."""
        spec = PathFinder.find_spec(name, path, target)
        origin = None if spec is None or spec.origin is None else Path(spec.origin).resolve()
        if spec is None or origin is None or origin not in self._files:
            return None
        spec.loader = _Loader(name, str(origin), self._files[origin])
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, content: bytes) -> None:
        super().__init__(name, path)
        self._content = content

    def get_code(self, _name: str) -> CodeType:
        """The content's own, which no byte code of the file is taken for."""
        return self.source_to_code(self._content, self.path)


if __name__ == "__main__":
    gc.freeze()
    gc.enable()
    main()
    gc.freeze()  # What the module's steps imported, as `parallel/worker.py` has it.
