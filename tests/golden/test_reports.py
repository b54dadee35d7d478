"""Whole reports, as files to be read: `pytest tests/golden --snapshot-update` rewrites them."""

import io

import pytest
from rich.console import Console
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from peakward.records import codec
from peakward.records.study import Study
from peakward.report import documents, html, markdown, terminal


def in_files(extension: str) -> type[SingleFileSnapshotExtension]:
    """Snapshots that are one text file each."""

    class Extension(SingleFileSnapshotExtension):
        _write_mode = WriteMode.TEXT
        file_extension = extension

    return Extension


@pytest.fixture(params=["run", "bench"])
def document(request, studies):
    """The report of a study that has been stored and read again."""
    study = getattr(studies, f"{request.param}_study")()
    return documents.document(codec.from_json(codec.to_json(study), Study))


@pytest.mark.parametrize("width", [100, 80])
def test_terminal(document, width, snapshot):
    file = io.StringIO()
    terminal.render(document, Console(file=file, width=width, force_terminal=False))
    text = "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())
    assert text == snapshot(extension_class=in_files("txt"))


def test_markdown(document, snapshot):
    assert markdown.render(document) == snapshot(extension_class=in_files("md"))


def test_html(document, snapshot):
    assert html.render(document) == snapshot(extension_class=in_files("html"))
