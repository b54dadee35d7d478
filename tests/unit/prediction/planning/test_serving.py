"""Serving on several devices, at best."""

import pytest

from peakward.hardware.devices import device, least_memory_bytes
from peakward.models.presets import model
from peakward.prediction.inference.floor import serving_floor
from peakward.prediction.parameters import n_parameters
from peakward.prediction.planning.serving import serving_plan
from peakward.prediction.planning.site import site
from peakward.records import codec
from peakward.records.errors import PeakwardError
from peakward.records.inference import ServingWorkload, WeightFormat
from peakward.records.plan import ServingPlan

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
