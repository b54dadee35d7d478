"""Each lever by itself."""

import pytest

from peakward.hardware.devices import device
from peakward.levers.catalogue import LEVERS, lever
from peakward.models.presets import model
from peakward.prediction.planning.changes import Base, change, changes, gain, obstacle, pulled
from peakward.prediction.planning.forecast import forecast
from peakward.prediction.planning.site import site
from peakward.records.case import Configuration, ModelCase, Workload

H100, A100 = site(device("h100-sxm-80")), site(device("a100-sxm-80"))


def based(asked, on):
    return Base(asked, forecast(asked, on))


def case(pass_="train_step", **configuration):
    return ModelCase(
        model=model("2.7B"),
        workload=Workload(batch_size=4, seq_len=512, pass_=pass_),
        configuration=Configuration(**configuration),
        device="cuda",
    )


def test_every_lever_that_changes_the_case_is_there_the_greatest_gain_first():
    found = changes(based(case(precision="bf16"), H100), H100)
    names = [name for each in found for name in each.levers]
    assert set(names) == {each.name for each in LEVERS} - {"bf16"}
    gains = [gain(each) for each in found]
    assert gains == sorted(gains, reverse=True)


def test_a_lever_s_gain_is_the_ratio_of_two_forecasts():
    base = based(case(), H100)
    found = change((lever("bf16"),), base, H100)
    other = forecast(case(precision="bf16"), H100)
    assert found.step_s == other.step_s
    assert found.speedup.estimate == pytest.approx(
        base.forecast.step_s.estimate / other.step_s.estimate
    )
    assert found.speedup.low < found.speedup.estimate < found.speedup.high
    assert found.needed_bytes == other.needed_bytes < base.forecast.needed_bytes


def test_a_lever_that_costs_time_is_said_to():
    found = change((lever("checkpointing"),), based(case(), H100), H100)
    assert found.speedup.high < 1
    assert found.needed_bytes < forecast(case(), H100).needed_bytes


def test_what_cannot_apply_has_no_figures_and_a_reason():
    found = change((lever("fp8"),), based(case(), A100), A100)
    assert found.step_s is found.speedup is found.needed_bytes is found.fits is None
    assert [each.figure for each in found.absent] == ["all"]
    assert "8.9, got 8.0" in found.absent[0].reason
    assert obstacle((lever("fp8"),), case(), H100) is None


def test_a_lever_may_need_another_before_it():
    cudnn = lever("sdpa-cudnn")
    assert "needs the precision" in obstacle((cudnn,), case(), H100)
    assert obstacle((lever("bf16"), cudnn), case(), H100) is None
    both = pulled(case(), (lever("bf16"), cudnn)).configuration
    assert (both.precision, both.attention) == ("bf16", "sdpa-cudnn")
