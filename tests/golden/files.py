"""Whole reports as snapshot files."""

import io

from rich.console import Console
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from peakward.report import terminal
from peakward.report.document import Document


def in_files(extension: str) -> type[SingleFileSnapshotExtension]:
    """Snapshots that are one text file each."""

    class Extension(SingleFileSnapshotExtension):
        _write_mode = WriteMode.TEXT
        file_extension = extension

    return Extension


def on_terminal(document: Document, width: int) -> str:
    """What a terminal of that width shows, without colours."""
    file = io.StringIO()
    terminal.render(document, Console(file=file, width=width, force_terminal=False))
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())
