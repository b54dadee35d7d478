"""The best of a run as a patch of the user's own files: of a factory, or of the call that began the run."""

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from peakward.levers.compile import compiled_before
from peakward.levers.in_code import in_module, optimizer_line
from peakward.levers.precision import coming_in
from peakward.patches.attention import in_attention
from peakward.patches.call import at_call
from peakward.patches.factory import Lines, Place, in_factory
from peakward.patches.optimizer import in_optimizers
from peakward.patches.source import Edit, Source, unified_diff
from peakward.records.case import (
    AS_WRITTEN,
    Configuration,
    LeverCase,
    ModelCase,
    ModuleCase,
    StepCase,
)
from peakward.records.errors import PeakwardError
from peakward.records.linear_layers import LinearChoice
from peakward.records.study import CallSite, Patch, Study
from peakward.report.cases import settings
from peakward.report.run.investigation import read
from peakward.tune.costs import TURN

if TYPE_CHECKING:
    import torch

    from peakward.lab.measure.patch_check import Built

N_ROUNDS = 4
"""Turns of the patched module and of the best: there and back, twice."""
Edited = tuple[tuple[Edit, ...], tuple[str, ...]]
"""Edits of a file, and what they leave, a sentence each."""


class AtWork(NamedTuple):
    """The composition that is at work in a live model."""

    case: LeverCase
    linear: LinearChoice | None
    """Its layers in fp8; None where it has none, or has taken no step yet."""


def of_study(study: Study, *, n_rounds: int = N_ROUNDS, at_work: AtWork | None = None) -> Patch:
    """The patch of a run: of a factory's file, or of the call that the run began with.

    Args:
        n_rounds: how often a factory's patched module is timed in turn with the best; 0: their numbers
            alone are compared.
        at_work: what takes the place of the study's best, where that was applied. None: nothing does.

    Raises:
        PeakwardError: no gain was confirmed; the best is in fp8 and was not measured alone; the files have
            changed since, are not the user's, or are written in a way that no line can be added to; a
            factory's patched module computes something else.
    """
    found = read(study)
    base, best = found.baseline.case, None if found.best is None else found.best.case
    linear = None if found.best is None else found.best.linear
    if at_work is not None:
        best = None if at_work.case == base else at_work.case
        linear = at_work.linear or linear
    if best is None or isinstance(best, ModelCase) or isinstance(base, ModelCase):
        got = "no gain" if best is None else f"one of {base.name}"
        raise PeakwardError(
            f"expected a run that found a gain for a model of yours, got {got} in {study.id}: there is "
            "nothing to patch"
        )
    if best.configuration.precision == "fp8" and linear is None:
        is_measured = found.best is not None and found.best.measurement is not None
        got = (
            "one by an earlier Peakward: run it with another database (--db, db=)"
            if is_measured
            else "none, because the budget ended before it: run the same again, which goes on there"
        )
        raise PeakwardError(
            f"expected a measurement of the best that names its layers in fp8, got {got}"
        )
    if study.called is not None:
        return _at_call(study.called, base, best, linear)
    if isinstance(best, ModuleCase) and best.source.startswith("py:"):
        return patched(best, linear, n_rounds=n_rounds)
    raise PeakwardError(
        f"expected a run of py:package.module:factory, or one that a file of yours called, got one of "
        f"{base.name}: the report has the lines"
    )


def text_of(study: Study, at_work: AtWork | None = None) -> str:
    """The diff of a run, below a line for each setting of its best that the diff does not make; what applies
    a diff passes over these.

    Args:
        at_work: as of `of_study`.

    Raises:
        PeakwardError: as `of_study`; all is to be done by hand.
    """
    made = of_study(study, n_rounds=0, at_work=at_work)
    if made.left and not made.text:
        raise PeakwardError(
            f"expected a best that lines can make, got one to make by hand: {' '.join(made.left)}"
        )
    return "".join(f"# By hand: {each}\n" for each in made.left) + made.text


def patched(
    best: ModuleCase, linear: LinearChoice | None = None, *, n_rounds: int = N_ROUNDS
) -> Patch:
    """The patch that gives a case from its module as written, with all that is known of it.

    Args:
        best: of a factory whose files are below the working directory.
        linear: its layers in fp8, where that is its precision.
        n_rounds: how often the patched module and the case are timed in turn; 0: their numbers alone are
            compared.

    Raises:
        PeakwardError: as `of_study`.
    """
    from peakward.lab.measure import patch_check

    made = patch_check.built(best)
    expect_theirs(Path(made.file))
    before = {
        path: path.read_bytes() for path in map(Path, dict.fromkeys((made.file, *made.modules)))
    }
    files, left = dict(before), list[str]()
    _edit(files, left, Path(made.file), lambda source: _in_factory(source, made, best, linear))
    _edit_others(files, left, AS_WRITTEN, best.configuration)
    changed = {path: text for path, text in files.items() if text != before[path]}
    if not changed:
        return Patch(text="", left=tuple(left))
    # A study makes the optimizer itself.
    plain = coming_in(
        msgspec.structs.replace(AS_WRITTEN, optimizer=best.configuration.optimizer),
        in_bf16=made.in_bf16,
    )
    found = patch_check.compared(
        best,
        plain,
        changed,
        protocol=TURN,
        n_rounds=n_rounds,
        in_fp8=None if linear is None else linear.taken,
    )
    if found.numerics.verdict != "holds":
        raise PeakwardError(
            f"expected the patched module to compute what the best does, got other {found.numerics.reason}: "
            "take the lines of the report"
        )
    return Patch(
        text=_diff(before, files),
        left=tuple(left),
        numerics=found.numerics,
        best_s=median(found.best_s) if found.best_s else None,
        patched_s=median(found.patched_s) if found.patched_s else None,
    )


def call_site(function: str, model: "torch.nn.Module | None") -> CallSite | None:
    """The call of a public function that is under way; None where no file of the user's makes it.

    Args:
        function: its name.
        model: what it is given.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and f"{frame.f_globals.get('__name__')}.".startswith("peakward."):
        frame = frame.f_back
    if frame is None:
        return None
    from peakward.lab.models.given_module import blocks_of, files_of, keeps_buffers

    place = Path(frame.f_code.co_filename).resolve()
    theirs = (place, *(() if model is None else map(Path, files_of(model))))
    if not (place.is_file() and is_theirs(place)):
        return None
    return CallSite(
        function=function,
        line=frame.f_lineno,
        blocks=None if model is None else blocks_of(model),
        keeps_buffers=model is not None and keeps_buffers(model),
        files=tuple(
            (_relative(path), _digest(path.read_bytes())) for path in dict.fromkeys(theirs)
        ),
    )


def _at_call(
    site: CallSite,
    base: ModuleCase | StepCase,
    best: ModuleCase | StepCase,
    linear: LinearChoice | None,
) -> Patch:
    """The lines in the place of a call, or behind it. A script is not run to see what they give."""
    before = {Path(name).resolve(): Path(name).read_bytes() for name in _unchanged(site)}
    files, left = dict(before), list[str]()
    main = next(iter(files))
    lines = in_module(
        best.configuration,
        base.configuration,
        best.device,
        site.blocks,
        keeps_buffers=site.keeps_buffers,
        linear=linear,
    )
    left += lines.left
    given = Lines(imports=lines.imports, body=lines.body, said=_said(base, best))
    if lines.body or site.function == "optimize":
        _edit(
            files,
            left,
            main,
            lambda source: (at_call(source, site.line, site.function, given), ()),
        )
    _edit_others(files, left, base.configuration, best.configuration)
    for path, text in files.items():
        Source(_relative(path), text)
    return Patch(text=_diff(before, files), left=tuple(left))


def _unchanged(site: CallSite) -> Iterator[str]:
    for name, digest in site.files:
        path = Path(name)
        if not path.is_file() or _digest(path.read_bytes()) != digest:
            raise PeakwardError(
                f"expected {name} as it was when {site.function} was called, got another: its lines may have "
                "moved; run it again, in the same folder"
            )
        yield name


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _said(base: LeverCase, best: LeverCase) -> str:
    plain = settings(base)
    chosen = [each for each in settings(best) if each not in plain and not each.startswith("adamw")]
    return f"The best that Peakward found for this model: {', '.join(chosen)}."


def _edit_others(
    files: dict[Path, bytes], left: list[str], base: Configuration, best: Configuration
) -> None:
    """The optimizer and attention, wherever one of the files makes them."""
    if (line := optimizer_line(best, base)) is not None:
        held = tuple(files.values())
        for path in files:
            _edit(files, left, path, lambda source: in_optimizers(source, best.optimizer))
        if tuple(files.values()) == held:
            left.append(f"The optimizer is yours to change where it is made: {line}")
    if best.attention.startswith("sdpa") and best.attention != base.attention:
        held, n_left = tuple(files.values()), len(left)
        for path in files:
            _edit(files, left, path, in_attention)
        if best.attention == "sdpa" and tuple(files.values()) == held and len(left) == n_left:
            left.append(
                "No attention was found in a method of your files whose softmax over dimension -1 stands "
                "between two matrix products (@ or matmul), which is all that a diff replaces: call "
                "torch.nn.functional.scaled_dot_product_attention where the model attends; of transformers, "
                'model.set_attn_implementation("sdpa")'
            )


def _diff(before: Mapping[Path, bytes], files: Mapping[Path, bytes]) -> str:
    diffs = (unified_diff(_relative(path), before[path], text) for path, text in files.items())
    return b"".join(diffs).decode()


def _edit(
    files: dict[Path, bytes], left: list[str], path: Path, edits: Callable[[Source], Edited]
) -> None:
    """Edits one of the files, as the edits before left it."""
    source = Source(_relative(path), files[path])
    made, said = edits(source)
    files[path] = source.edited(made)
    left += said


def _in_factory(
    source: Source, made: "Built", best: ModuleCase, linear: LinearChoice | None
) -> Edited:
    wanted = best.configuration
    base = coming_in(compiled_before(AS_WRITTEN, made.compiled), in_bf16=made.in_bf16)
    if made.compiled and (wanted.compile, wanted.compile_scope) != (
        base.compile,
        base.compile_scope,
    ):
        raise PeakwardError(
            f"expected a best that compiles as {made.name} does, default by {base.compile_scope}, got "
            f"{wanted.compile} by {wanted.compile_scope}: leave its compilation out and run it again; that "
            "is a lever here"
        )
    lines = in_module(
        wanted,
        base,
        best.device,
        made.blocks,
        keeps_buffers=made.keeps_buffers,
        linear=linear,
    )
    if not lines.body:
        return (), lines.left
    plain = msgspec.structs.replace(best, configuration=base)
    given = Lines(imports=lines.imports, body=lines.body, said=_said(plain, best))
    place = Place(name=made.name, line=made.line)
    return in_factory(source, place, made.made, given), lines.left


def is_theirs(path: Path) -> bool:
    """Whether a file is below the working directory, and of no installed package."""
    return path.is_relative_to(Path.cwd().resolve()) and "site-packages" not in path.parts


def expect_theirs(path: Path) -> None:
    """Refuses a file that is not the user's to change.

    Raises:
        PeakwardError: it is not below the working directory, or is a package that was installed.
    """
    if not is_theirs(path):
        raise PeakwardError(
            f"expected a file of yours below {Path.cwd()}, got {path}: let a function of yours make the "
            "model, and run this in its folder"
        )


def _relative(path: Path) -> str:
    return path.relative_to(Path.cwd().resolve()).as_posix()
