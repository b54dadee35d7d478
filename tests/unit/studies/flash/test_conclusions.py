"""What `flash` concludes from known times."""

import pytest

from peakward.records.measurement import Interval
from peakward.studies import flash
from peakward.studies.flash import conclusions
from peakward.studies.flash.grid import read
from peakward.studies.readings import Readings
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
    assert without[0].text.endswith("TFLOP/s within one process).")


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
        ((128, 512), "the fastest at length 1,024 alone"),
        ((128, 512, 1024), "not measurably the fastest at length 1,024"),
        ((1024,), "not measurably the fastest at length 1,024"),
    ],
)
def test_from_which_length_on_it_is_the_fastest(rival_at, said, cells):
    """flex, in the fake lab as fast as sdpa, runs at some lengths alone."""

    def overrule(case):
        return "crashed" if case.attention == "flex" and case.seq_len not in rival_at else None

    scope = Scope("small", seq_lens=(128, 512, 1024))
    found = conclusions.crossovers(cells(scope, "cpu", overrule=overrule)[0])
    text = found[0].text.replace(" of those timed", "")
    assert f"In fp32, head dim 64, forward, {said}: " in text


@pytest.mark.parametrize(
    ("high", "said"), [(0.96, "not the fastest"), (1.02, "not measurably the fastest")]
)
def test_slower_is_told_from_not_measurably_faster(high, said, cells, monkeypatch):
    slower = Interval(estimate=0.95, low=0.94, high=high)
    monkeypatch.setattr(conclusions, "median_ratio", lambda *_: slower)
    found = conclusions.crossovers(cells(Scope("small", seq_lens=(128,)), "cpu")[0])
    assert f"forward, {said} at length 128: " in found[0].text


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("oom", "flex (out of memory)"),
        ("timeout", "flex (timed out)"),
        ("crashed", "flex (crashed)"),
        ("ok", "flex (not run)"),
    ],
)
def test_who_was_not_timed_is_named_in_the_sentence_that_says_the_fastest(status, said, read_flash):
    def overrule(case):
        return status if case.attention == "flex" else None

    here, readings = read_flash(Scope("small", seq_lens=(128,)), "cpu", overrule=overrule)
    kept = Readings(each for each in readings if status != "ok" or each.case.attention != "flex")
    (first, *_) = conclusions.crossovers(read(kept, here))
    assert first.text.startswith("In fp32, head dim 64, forward, the fastest of those timed at")
    assert first.text.endswith(f"; not timed: {said}, flash, flash-hopper (cannot run here).")


def test_the_roof_is_that_of_the_type_that_the_products_run_as(read_flash):
    here, readings = read_flash(roofs={"fp32": 50e12, "tf32": 300e12, "bf16": 600e12})
    roofs = {
        cell.arm.name: cell.roof_flops_per_s
        for cell in read(readings, here)
        if cell.precision == "fp32"
    }
    assert roofs["naive"] == roofs["sdpa-math"] == roofs["flex"] == 50e12
    assert roofs["flash"] == roofs["sdpa-efficient"] == 100e12
    assert roofs["compiled"] is roofs["sdpa"] is None
    texts = [each.text for each in flash.parts(readings, here).conclusions]
    assert any("of the bf16 matmul roof for a product made of 6." in each for each in texts)


def test_nothing_ran_nothing_said(read_flash):
    here, readings = read_flash(overrule=lambda case: "crashed")
    assert flash.parts(readings, here).conclusions == ()
