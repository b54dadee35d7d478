"""Reports of stored plans, whole: `pytest tests/golden --snapshot-update` rewrites them."""

import gzip
from pathlib import Path

import pytest

from peakward.records import codec
from peakward.records.layouts import LayoutPlan
from peakward.records.plan import Plan
from peakward.report import layouts as layout_pages
from peakward.report import markdown
from peakward.report import plan as pages

from .files import in_files, on_terminal

PLANS = Path(__file__).parents[1] / "data" / "plans"


@pytest.fixture(params=["one_gpu", "eight_gpus", "experts"])
def found(request):
    """What `peakward plan --json` printed."""
    return codec.from_json(gzip.decompress((PLANS / f"{request.param}.json.gz").read_bytes()), Plan)


@pytest.mark.parametrize("width", [100, 80])
def test_one_screen(found, width, snapshot):
    assert on_terminal(pages.summary(found), width) == snapshot(extension_class=in_files("txt"))


def test_everything(found, snapshot):
    assert markdown.render(pages.whole(found)) == snapshot(extension_class=in_files("md"))


@pytest.fixture
def laid_out():
    """What `peakward plan --gpus 64 --device h100-sxm --model llama-3-70b --json` printed."""
    return codec.from_json(gzip.decompress((PLANS / "layouts.json.gz").read_bytes()), LayoutPlan)


def test_layouts_on_one_screen(laid_out, snapshot):
    assert on_terminal(layout_pages.summary(laid_out), 80) == snapshot(
        extension_class=in_files("txt")
    )


def test_all_of_layouts(laid_out, snapshot):
    assert markdown.render(layout_pages.whole(laid_out)) == snapshot(extension_class=in_files("md"))
