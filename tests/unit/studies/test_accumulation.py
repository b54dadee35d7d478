"""What `accumulation` plans, tables and concludes from known figures."""

import pytest

from peakward.studies import accumulation
from peakward.studies.accumulation import PIECES


@pytest.fixture
def made(setting, gathered):
    def make(device="cpu", scope="small", **options):
        here = setting(scope, device)
        return accumulation.STUDY.parts(gathered(accumulation.STUDY, here, **options), here)

    return make


def test_each_way_has_a_sentence_with_its_error(made):
    said = [each.text for each in made().conclusions]
    assert len(said) == 4
    for name in PIECES["dot"]:
        assert f"{name} " in said[1]


def test_of_nothing_nothing_is_said(made):
    assert made(overrule=lambda case: "crashed").conclusions == ()


def test_the_nearest_to_fp64_is_the_nearest_of_all_ways(made, monkeypatch):
    off = {"fp32 one by one": 1e-7, "fp16 products, fp32 sum": 5e-6, "fp16 one by one": 0.2}
    monkeypatch.setattr(accumulation, "difference", lambda row: off.get(row.name))
    (said,) = (each.text for each in made().conclusions if "nearest" in each.text)
    assert "wrong by a per cent or more are fp16 one by one" in said
    assert "the nearest to fp64 is fp32 one by one" in said
