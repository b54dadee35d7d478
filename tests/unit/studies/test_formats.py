"""What `formats` tables and concludes: its constants beside torch's, and roundings that were really made."""

import msgspec
import pytest
import torch

from peakward.lab.micro.formats import PIECES
from peakward.lab.numerics import rounding, subjects
from peakward.records.case import NumericsCase
from peakward.studies import formats
from peakward.studies.formats import FORMATS
from peakward.studies.readings import Readings

TYPES = {**rounding.FLOATS, "int8": torch.int8}


@pytest.mark.parametrize("each", FORMATS, ids=lambda each: each.name)
def test_the_constants_are_torchs(each):
    if each.name not in TYPES:
        assert each.name in ("tf32", "int4")
        assert each.largest == pytest.approx(rounding.largest_of(each.name), rel=1e-3)
        return
    dtype = TYPES[each.name]
    if not dtype.is_floating_point:
        assert each.largest == torch.iinfo(dtype).max
        return
    found = torch.finfo(dtype)
    assert (each.bits, each.largest, each.smallest_normal) == (found.bits, found.max, found.tiny)
    assert each.unit_roundoff == found.eps / 2
    assert each.smallest == found.tiny * found.eps


@pytest.fixture
def parts(setting, measure, monkeypatch):
    monkeypatch.setitem(formats.DECODERS, "small", (1, 64, 16, 2, 3))

    def make(device="cpu", **changes):
        here = msgspec.structs.replace(setting("small", device), has_smollm2=False, **changes)
        readings = Readings()
        for n, (case, by) in enumerate(formats.STUDY.plan(here)):
            made = measure(case, by, here.environment, serial=n)
            if isinstance(case, NumericsCase):
                looked = subjects.look(msgspec.structs.replace(case, device="cpu"))
                made = msgspec.structs.replace(made, numerics=looked)
            readings.add(made)
        return formats.STUDY.parts(readings, here)

    return make


def test_narrower_formats_err_more_and_say_so(parts, rows, figures):
    made = parts()
    lines = rows(made.tables[1])
    errors = {
        (each["tensors"], each["format"]): each["error"]
        for each in lines
        if each["scale"] != "a scale for 64"
    }
    for kind in ("activations", "weights", "gradients"):
        order = [errors[kind, name] for name in ("fp32", "tf32", "bf16", "fp8 e4m3", "fp8 e5m2")]
        assert order == sorted(order)
    said = [each for each in made.conclusions if "arithmetic says" in each.text]
    found = figures(said[0])
    assert found["bf16's error over tf32's"] == pytest.approx(found["by arithmetic"], rel=0.1) == 8
    assert any("become 0" in each.text for each in made.conclusions)


def test_what_is_not_multiplied_here_says_why(parts, rows):
    products = {each["format"]: each for each in rows(parts().tables[2])}
    assert products["int8"]["status"] == "ok"
    for name in ("tf32", "int4"):
        assert products[name]["status"] == "not available"
        assert products[name]["rate"] is None
        assert products[name]["reason"]
    assert set(products) == {*PIECES, "int4"}


def test_an_older_gpu_has_no_fp8(parts, rows, setting):
    old = msgspec.structs.replace(setting("small").environment, compute_capability="8.0")
    products = {
        each["format"]: each["status"] for each in rows(parts("cuda", environment=old).tables[2])
    }
    assert products["tf32"] == "ok"
    assert products["fp8 e4m3"] == products["fp8 e5m2"] == "not available"
