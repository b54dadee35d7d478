"""The best of a run as a patch of the user's own files: `patch`, and `peakward run --write-patch`."""

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from peakward.api import session
from peakward.levers.in_code import in_module, optimizer_line
from peakward.patches.attention import in_attention
from peakward.patches.factory import Lines, Place, in_factory
from peakward.patches.optimizer import in_optimizers
from peakward.patches.source import Edit, Source, unified_diff
from peakward.records.case import AS_WRITTEN, ModuleCase
from peakward.records.errors import PeakwardError, quoted
from peakward.records.study import Patch, Study
from peakward.report.cases import settings
from peakward.report.run.investigation import read
from peakward.tune.costs import TURN

if TYPE_CHECKING:
    from peakward.lab.measure.patch_check import Built

N_ROUNDS = 4
"""Turns of the patched module and of the best: there and back, twice."""
Edited = tuple[tuple[Edit, ...], tuple[str, ...]]
"""Edits of a file, and what they leave, a sentence each."""


def patch(study: Study) -> str:
    """The best of a run as a unified diff of the user's files, for `patch -p1` or `git apply`.

    The factory's module gets plain lines of torch before it is returned. The patched files are imported and
    run beside the best before the diff is given.

    Args:
        study: of `run`, of a module `py:package.module:factory`; the working directory holds its files.

    Raises:
        PeakwardError: no gain was confirmed; the files have changed since, are not the user's, or are
            written in a way that no line can be added to; the patched module computes something else.
    """
    if not isinstance(study, Study):
        raise PeakwardError(
            f"expected a study of a run, got {quoted(study)}: `pw.run` makes one, `pw.load` reads one"
        )
    return patched(best_of(study), n_rounds=0).text


def patched(best: ModuleCase, *, n_rounds: int = N_ROUNDS) -> Patch:
    """The patch that gives a case from its module as written, with all that is known of it.

    Args:
        best: of a factory whose files are below the working directory.
        n_rounds: how often the patched module and the case are timed in turn; 0: their numbers alone are
            compared.

    Raises:
        PeakwardError: as `patch`.
    """
    session.expect_torch()
    from peakward.lab.measure import patch_check

    made = patch_check.built(best)
    expect_theirs(Path(made.file))
    before = {
        path: path.read_bytes() for path in map(Path, dict.fromkeys((made.file, *made.modules)))
    }
    files, left = dict(before), list[str]()
    _edit(files, left, Path(made.file), lambda source: _in_factory(source, made, best))
    if (line := optimizer_line(best.configuration, AS_WRITTEN)) is not None:
        held = tuple(files.values())
        for path in files:
            _edit(
                files,
                left,
                path,
                lambda source: in_optimizers(source, best.configuration.optimizer),
            )
        if tuple(files.values()) == held:
            left.append(f"The optimizer is yours to change where it is made: {line}")
    if best.configuration.attention.startswith("sdpa"):
        for path in files:
            _edit(files, left, path, in_attention)
    changed = {path: text for path, text in files.items() if text != before[path]}
    if not changed:
        return Patch(text="", left=tuple(left))
    # A study makes the optimizer itself.
    plain = msgspec.structs.replace(AS_WRITTEN, optimizer=best.configuration.optimizer)
    found = patch_check.compared(best, plain, changed, protocol=TURN, n_rounds=n_rounds)
    if found.numerics.verdict != "holds":
        raise PeakwardError(
            f"expected the patched module to compute what the best does, got other {found.numerics.reason}: "
            "take the lines of the report"
        )
    diffs = (unified_diff(_relative(path), before[path], text) for path, text in changed.items())
    return Patch(
        text=b"".join(diffs).decode(),
        left=tuple(left),
        numerics=found.numerics,
        best_s=median(found.best_s) if found.best_s else None,
        patched_s=median(found.patched_s) if found.patched_s else None,
    )


def best_of(study: Study) -> ModuleCase:
    """The best of a run of a factory.

    Raises:
        PeakwardError: the study is of something else, or found no gain.
    """
    found = read(study)
    base, best = found.baseline.case, None if found.best is None else found.best.case
    if not isinstance(base, ModuleCase) or not base.source.startswith("py:"):
        raise PeakwardError(
            f"expected a run of py:package.module:factory, got one of {base.name}: no file of yours makes "
            "that model; the report has the lines"
        )
    if not isinstance(best, ModuleCase):
        raise PeakwardError(
            f"expected a run that confirmed a gain, got {study.id} without one: there is nothing to patch"
        )
    return best


def _edit(
    files: dict[Path, bytes], left: list[str], path: Path, edits: Callable[[Source], Edited]
) -> None:
    """Edits one of the files, as the edits before left it."""
    source = Source(_relative(path), files[path])
    made, said = edits(source)
    files[path] = source.edited(made)
    left += said


def _in_factory(source: Source, made: "Built", best: ModuleCase) -> Edited:
    lines = in_module(best.configuration, AS_WRITTEN, best.device, made.blocks)
    if not lines.body:
        return (), lines.left
    plain = settings(msgspec.structs.replace(best, configuration=AS_WRITTEN))
    chosen = [each for each in settings(best) if each not in plain and not each.startswith("adamw")]
    said = f"The best that `peakward run` found for this model: {', '.join(chosen)}."
    given = Lines(imports=lines.imports, body=lines.body, said=said)
    place = Place(name=made.name, line=made.line)
    return in_factory(source, place, made.made, given), lines.left


def expect_theirs(path: Path) -> None:
    """Refuses a file that is not the user's to change.

    Raises:
        PeakwardError: it is not below the working directory, or is a package that was installed.
    """
    if not path.is_relative_to(Path.cwd().resolve()) or "site-packages" in path.parts:
        raise PeakwardError(
            f"expected a file of yours below {Path.cwd()}, got {path}: let a function of yours make the "
            "model, and run this in its folder"
        )


def _relative(path: Path) -> str:
    return path.relative_to(Path.cwd().resolve()).as_posix()
