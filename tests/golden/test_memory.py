"""Reports of recorded snapshots, whole: `pytest tests/golden --snapshot-update` rewrites them."""

from pathlib import Path

import pytest

from peakward.report import markdown
from peakward.report import memory as pages
from peakward.traces.memory.memory import memory

from .files import in_files, on_terminal

SNAPSHOTS = Path(__file__).parents[1] / "data" / "snapshots"


@pytest.fixture(params=["train", "late", "oom"])
def found(request):
    """The report of a recording."""
    return memory(SNAPSHOTS / f"{request.param}.pickle.gz").report()


@pytest.mark.parametrize("width", [100, 80])
def test_one_screen(found, width, snapshot):
    assert on_terminal(pages.summary(found), width) == snapshot(extension_class=in_files("txt"))


def test_everything(found, snapshot):
    assert markdown.render(pages.whole(found)) == snapshot(extension_class=in_files("md"))
