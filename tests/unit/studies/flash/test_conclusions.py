"""What `flash` concludes from known times."""

import pytest

from peakward.records.measurement import Interval
from peakward.studies import flash
from peakward.studies.flash import conclusions
from peakward.studies.flash.grid import read
from peakward.studies.scope import Scope


@pytest.fixture
def cells(read_flash):
    def make(*scope, **options):
        here, readings = read_flash(*scope, **options)
        return read(readings, here), readings.calibration

    return make


def test_the_best_rate_and_its_share_of_the_roof(cells, figures):
    found = conclusions.best(*cells())
    # Our first kernel in both types, the other in bf16 alone; three passes of two head dims.
    assert len(found) == (2 + 1) * 2 * 3
    first = figures(found[0])
    assert first["rate"] == pytest.approx(64e12)
    assert first["share of the roof"] == pytest.approx(64 / 400)
    without = conclusions.best(*cells(roofs={}))
    assert without[0].text.endswith("TFLOP/s).")


def test_gains_over_every_rival(cells):
    found = conclusions.against(cells()[0])
    rivals = ("naive", "compiled", "flex", "sdpa", "cudnn", "flash", "efficient", "math")
    assert [each.text.split(" runs at ")[0] for each in found] == [
        ours for ours in ("flash", "flash-hopper") for _ in rivals
    ]
    assert "8.00× the speed of naive at least" in found[0].text


@pytest.mark.parametrize(
    ("rival_at", "said"),
    [
        ((), "the fastest at every length"),
        ((128,), "the fastest from length 512 on"),
        ((128, 512), "the fastest at the longest alone"),
        ((128, 512, 1024), "not measurably the fastest at the longest"),
        ((1024,), "not measurably the fastest at the longest"),
    ],
)
def test_from_which_length_on_it_is_the_fastest(rival_at, said, cells):
    """flex, in the fake lab as fast as sdpa, runs at some lengths alone."""

    def overrule(case):
        return "crashed" if case.attention == "flex" and case.seq_len not in rival_at else None

    scope = Scope("small", seq_lens=(128, 512, 1024))
    found = conclusions.crossovers(cells(scope, "cpu", overrule=overrule)[0])
    assert f"In fp32, head dim 64, forward, {said}: " in found[0].text


@pytest.mark.parametrize(
    ("high", "said"), [(0.96, "not the fastest"), (1.02, "not measurably the fastest")]
)
def test_slower_is_told_from_not_measurably_faster(high, said, cells, monkeypatch):
    slower = Interval(estimate=0.95, low=0.94, high=high)
    monkeypatch.setattr(conclusions, "median_ratio", lambda *_: slower)
    found = conclusions.crossovers(cells(Scope("small", seq_lens=(128,)), "cpu")[0])
    assert f"forward, {said} at the longest: " in found[0].text


def test_nothing_ran_nothing_said(read_flash):
    here, readings = read_flash(overrule=lambda case: "crashed")
    assert flash.parts(readings, here).conclusions == ()
