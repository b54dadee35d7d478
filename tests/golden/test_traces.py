"""Reports of recorded traces, whole: `pytest tests/golden --snapshot-update` rewrites them."""

from pathlib import Path

import pytest

from peakward.api.traces import report, trace
from peakward.records import codec
from peakward.records.finding import TraceReport
from peakward.report import markdown
from peakward.report import profile as pages

from .files import in_files, on_terminal

TRACES = Path(__file__).parents[1] / "data" / "traces"


@pytest.fixture(params=["h200_decoder_compiled", "h200_decoder_cuda_graphs", "cpu_decoder"])
def found(request):
    """The report of a recording, written and read again."""
    told = report([trace(TRACES / f"{request.param}.json.gz")])
    return codec.from_json(codec.to_json(told), TraceReport)


@pytest.mark.parametrize("width", [100, 80])
def test_one_screen(found, width, snapshot):
    assert on_terminal(pages.screen(found), width) == snapshot(extension_class=in_files("txt"))


def test_everything(found, snapshot):
    assert markdown.render(pages.document(found)) == snapshot(extension_class=in_files("md"))
