"""The predicted effect of a lever, from two forecasts."""

import pytest

from peakward.hardware.devices import device
from peakward.levers.catalogue import lever, pull
from peakward.models.presets import model
from peakward.prediction.planning.changes import Base, change
from peakward.prediction.planning.forecast import forecast
from peakward.prediction.planning.foretold import foretold
from peakward.prediction.planning.site import site
from peakward.records.case import ModelCase, Workload

HERE = site(device("h100-sxm-80"))
BASE = ModelCase(model=model("small"), workload=Workload(batch_size=4, seq_len=512), device="cuda")


def told(name, base=BASE):
    return foretold(forecast(base, HERE), forecast(pull(lever(name), base), HERE))


def test_the_time_ratio_is_that_of_a_plan_upside_down():
    planned = change((lever("bf16"),), Base(BASE, forecast(BASE, HERE)), HERE).speedup
    ratio = told("bf16").time_ratio
    assert ratio.estimate == pytest.approx(1 / planned.estimate)
    assert (ratio.low, ratio.high) == pytest.approx((1 / planned.high, 1 / planned.low))
    assert ratio.level == planned.level


def test_checkpointing_is_foretold_to_be_slower_and_smaller():
    found = told("checkpointing")
    assert found.time_ratio.estimate > 1
    assert found.memory_ratio < 1
    assert found.absent == ()


def test_what_a_forecast_lacks_is_absent_with_its_reason():
    found = told("fp8")
    for figure, ratio in (("time", found.time_ratio), ("memory", found.memory_ratio)):
        gaps = [gap for gap in found.absent if gap.figure == figure]
        assert (ratio is None) == bool(gaps)
        assert all(gap.reason for gap in gaps)
