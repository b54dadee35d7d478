"""A report to the terminal and to the files that were asked for."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from peakward.cli.vocabulary import ViewOptions
from peakward.records import codec
from peakward.records.errors import PeakwardError
from peakward.records.study import Study
from peakward.report.document import Document
from peakward.store import artefacts

PIPE_COLUMNS = 100


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A file to write, and the view to write to it."""

    path: Path
    render: Callable[[Document], str]
    overwrite: bool


def targets(options: ViewOptions) -> tuple[Target, ...]:
    """The files asked for, checked before anything is run for them.

    Raises:
        PeakwardError: a file that exists (without --force), or a place that cannot be written.
    """
    wanted = ((options.html, _html), (options.markdown, _markdown))
    found = tuple(
        Target(path=Path(path), render=render, overwrite=options.force)
        for path, render in wanted
        if path is not None
    )
    for target in found:
        artefacts.check(target.path, overwrite=target.overwrite, by="--force")
    if len({target.path.resolve() for target in found}) < len(found):
        raise PeakwardError(f"expected a file for each view, got {found[0].path} for two of them")
    return found


def show(
    record: msgspec.Struct,
    files: tuple[Target, ...],
    *,
    as_json: bool,
    document: Document,
    screen: Document | None = None,
) -> None:
    """Write the document to the files, then print it, or the record alone as one JSON document.

    `screen` is printed in its place, where a terminal should show less than a page.
    """
    for target in files:
        artefacts.check(target.path, overwrite=target.overwrite, by="--force")
        artefacts.write(target.path, target.render(document).encode())
    if as_json:
        sys.stdout.buffer.write(codec.to_json(record) + b"\n")
    else:
        print_document(document if screen is None else screen)
    for target in files:
        print(f"{target.path} written", file=sys.stderr)


def show_study(study: Study, files: tuple[Target, ...], *, as_json: bool) -> None:
    """`show` for one study and its own document."""
    # No other record's page needs these, which are 50 ms of a start.
    from peakward.report.study import document

    show(study, files, as_json=as_json, document=document(study))


def print_document(document: Document) -> None:
    """To the terminal, as wide as it is; to a file or a pipe, as COLUMNS says or 100 columns wide."""
    from rich.console import Console

    from peakward.report import terminal

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            # rich would exit with 1 here, which `compare` means as a regression.
            raise BrokenPipeError

    # rich prints nothing where COLUMNS is 0, as in some containers.
    terminal.render(document, Terminal(width=shutil.get_terminal_size((PIPE_COLUMNS, 24)).columns))


def _html(document: Document) -> str:
    from peakward.report import html

    return html.render(document)


def _markdown(document: Document) -> str:
    from peakward.report import markdown

    return markdown.render(document)
