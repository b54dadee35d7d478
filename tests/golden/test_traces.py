"""Reports of recorded traces, whole: `pytest tests/golden --snapshot-update` rewrites them."""

from pathlib import Path

import pytest

from peakward.catalogue.devices import device
from peakward.cli.trace import diagnosed
from peakward.records import codec
from peakward.records.finding import Diagnosis
from peakward.records.profile import Profile
from peakward.report import markdown
from peakward.report import profile as pages
from peakward.traces.trace import Trace

from .files import in_files, on_terminal

TRACES = Path(__file__).parents[1] / "data" / "traces"


@pytest.fixture(params=["h200_decoder_compiled", "h200_decoder_cuda_graphs", "cpu_decoder"])
def found(request):
    """The profile of a recording, written and read again."""
    on = None if request.param.startswith("cpu") else device("h200-141")
    profile = Trace.open(TRACES / f"{request.param}.json.gz").profile(device=on)
    return codec.from_json(codec.to_json(profile), Profile)


@pytest.fixture
def told(found):
    """What the rules say of it, written and read again."""
    on = None if found.is_of_host else device("h200-141")
    return codec.from_json(codec.to_json(diagnosed(found, on)), Diagnosis)


@pytest.mark.parametrize("width", [100, 80])
def test_one_screen(found, told, width, snapshot):
    assert on_terminal(pages.summary(found, told), width) == snapshot(
        extension_class=in_files("txt")
    )


def test_everything(found, told, snapshot):
    assert markdown.render(pages.whole(found, told)) == snapshot(extension_class=in_files("md"))
