"""A case on several devices."""

import pytest

from peakward.hardware.devices import device
from peakward.models.presets import model
from peakward.prediction.parameters import n_parameters
from peakward.prediction.planning.forecast import forecast
from peakward.prediction.planning.plan import plan
from peakward.prediction.planning.site import site
from peakward.records import codec
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.plan import Plan
from tiers import in_full


def test_each_device_has_its_own():
    case = ModelCase(
        model=model("small"), workload=Workload(batch_size=4, seq_len=512), device="cuda"
    )
    sites = [site(device(key), price_per_gpu_hour=2.0) for key in ("h100-sxm-80", "l4-24")]
    found = plan(case, sites, command="peakward plan")
    assert [each.forecast for each in found.devices] == [forecast(case, on) for on in sites]
    large, small = found.devices
    assert large.largest_batch_size > small.largest_batch_size > 4
    assert large.price_per_gpu_hour == 2.0
    assert large.composed_case.configuration != case.configuration
    assert found.n_parameters == n_parameters(case.model)
    assert codec.from_json(codec.to_json(found), Plan) == found


@pytest.mark.parametrize("pass_", ["train_step", *in_full(["forward"])])
@pytest.mark.parametrize("precision", ["bf16-mixed", *in_full(["fp32", "bf16"])])
def test_a_mixture_is_planned_but_for_what_compiles_it(precision, pass_):
    case = ModelCase(
        model=model("mixtral-8x7b"),
        workload=Workload(batch_size=4, seq_len=512, pass_=pass_),
        configuration=Configuration(precision=precision),
        device="cuda",
    )
    (found,) = plan(case, [site(device("h200-141"))], command="peakward plan").devices
    made = found.forecast
    assert made.step_s.estimate > made.floor_s
    assert (made.absent, made.memory.peak_bytes > made.memory.peak.parameters_bytes) == ((), True)
    reasons = [gap.reason for each in found.changes for gap in each.absent]
    assert any("compile of a mixture of experts" in each for each in reasons)
