"""Whole reports, as files to be read: `pytest tests/golden --snapshot-update` rewrites them."""

import pytest

from peakward.records import codec
from peakward.records.study import Study
from peakward.report import html, markdown
from peakward.report.study import document as study_document

from .files import in_files, on_terminal


@pytest.fixture(params=["run", "bench"])
def document(request, studies):
    """The report of a study that has been stored and read again."""
    study = getattr(studies, f"{request.param}_study")()
    return study_document(codec.from_json(codec.to_json(study), Study))


@pytest.mark.parametrize("width", [100, 80])
def test_terminal(document, width, snapshot):
    assert on_terminal(document, width) == snapshot(extension_class=in_files("txt"))


def test_markdown(document, snapshot):
    assert markdown.render(document) == snapshot(extension_class=in_files("md"))


def test_html(document, snapshot):
    assert html.render(document) == snapshot(extension_class=in_files("html"))
