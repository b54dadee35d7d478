"""A case on several devices."""

import pytest

from peakward.hardware.devices import device, least_memory_bytes
from peakward.models.presets import model
from peakward.prediction.inference.floor import serving_floor
from peakward.prediction.parameters import n_parameters
from peakward.prediction.planning.forecast import forecast
from peakward.prediction.planning.plan import plan, serving_plan
from peakward.prediction.planning.site import site
from peakward.records import codec
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.errors import PeakwardError
from peakward.records.inference import ServingWorkload, WeightFormat
from peakward.records.plan import Plan, ServingPlan
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


# Serving on several devices, at best.

H100, L4, V100 = (site(device(key)) for key in ("h100-sxm-80", "l4-24", "v100-sxm2-32"))
LLAMA = model("llama-3-8b")


def workload(**changes):
    asked = {"batch_size": 8, "prompt_len": 1024, "output_len": 128}
    return ServingWorkload(**(asked | changes))


def planned(*sites, **changes):
    limit = changes.pop("limit_bytes", None)
    return serving_plan(
        LLAMA, workload(**changes), sites, limit_bytes=limit, command="peakward plan"
    )


def test_each_device_has_its_floor():
    found = planned(H100, L4)
    assert found.n_parameters == n_parameters(LLAMA)
    for each, on in zip(found.devices, (H100, L4), strict=True):
        assert each.floor == serving_floor(
            LLAMA,
            workload(),
            calibration=None,
            device=on.device,
            memory_limit_bytes=least_memory_bytes(on.device),
        )
    assert codec.from_json(codec.to_json(found), ServingPlan) == found


def test_sixteen_gigabytes_of_weights_and_a_gigabyte_of_cache_fit_24_but_not_16():
    """8.03e9 parameters of 2 bytes; 128 KiB a token of 8 · 1151 positions."""
    (found,) = planned(L4).devices
    assert found.fits
    assert not planned(L4, limit_bytes=16 * 2**30).devices[0].fits
    assert planned(L4, limit_bytes=2**50).devices[0].limit_bytes == least_memory_bytes(L4.device)


def test_the_least_cost_is_the_price_of_an_hour_over_the_most_tokens_in_it():
    paid = site(device("h100-sxm-80"), price_per_gpu_hour=3.6)
    (found,) = planned(paid).devices
    per_s = found.floor.pace.output_tokens_per_s
    assert found.least_cost_per_million_tokens == pytest.approx(0.001 / per_s * 1e6)
    assert planned(H100).devices[0].least_cost_per_million_tokens is None


def test_a_type_whose_rate_nobody_states_is_absent_and_its_memory_is_not():
    (found,) = planned(V100, compute_type="bf16").devices
    assert found.floor is None
    assert [each.figure for each in found.absent] == ["least times"]
    assert found.fits


def test_what_cannot_be_served_is_refused():
    with pytest.raises(PeakwardError, match="only quantised weights have scales"):
        planned(H100, weights=WeightFormat(type="bf16", group_size=128))
