"""A case on a device, put together from time, memory and communication."""

import msgspec
import pytest

from peakward.hardware.devices import device
from peakward.models.presets import model
from peakward.prediction.flops import step_flops
from peakward.prediction.parameters import n_parameters
from peakward.prediction.planning.forecast import forecast
from peakward.prediction.planning.site import site
from peakward.prediction.time.device_model import device_model
from peakward.prediction.time.step import step_time
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.plan import DeviceGroup

H100 = device("h100-sxm-80")


def case(batch_size=4, size="small", **configuration):
    return ModelCase(
        model=model(size),
        workload=Workload(batch_size=batch_size, seq_len=512),
        configuration=Configuration(precision="bf16", **configuration),
        device="cuda",
    )


def test_rates_follow_from_the_step_and_their_ends_from_its_ends():
    found = forecast(case(), site(H100, price_per_gpu_hour=3.6))
    step = step_time(case(), device_model(None, H100)).step_s
    assert found.step_s == step
    assert found.tokens_per_s.estimate == pytest.approx(2048 / step.estimate)
    assert found.tokens_per_s.low == pytest.approx(2048 / step.high)
    assert found.mfu.high == pytest.approx(step_flops(case()) / 989.4e12 / step.low, rel=1e-3)
    assert found.floor_s < step.low
    # 3.6 an hour is a thousandth a second.
    assert found.cost_per_million_tokens.estimate == pytest.approx(
        0.001 * step.estimate * 1e6 / 2048
    )
    assert found.energy_per_token_j.high == pytest.approx(700 * step.high / 2048)
    assert found.absent == ()


def test_a_share_of_the_update_is_no_floor_of_the_whole():
    """AdamW's seven accesses of 2 bytes, of an eighth of the parameters."""
    asked = case(batch_size=1, size="llama-3-8b", attention="sdpa", optimizer="adamw-fused")
    alone = forecast(asked, site(H100))
    ddp, fsdp = (
        forecast(asked, site(H100, group=DeviceGroup(n_gpus=8, parallel=parallel)))
        for parallel in ("ddp", "fsdp")
    )
    assert ddp.floor_s == alone.floor_s
    update_s = 7 * 2 * n_parameters(asked.model) / 3350e9
    assert fsdp.floor_s == pytest.approx(alone.floor_s - 7 / 8 * update_s)
    assert fsdp.floor_s < fsdp.step_s.low


def test_without_a_price_there_is_no_cost_and_nothing_is_missing():
    found = forecast(case(), site(H100))
    assert found.cost_per_million_tokens is None
    assert found.absent == ()


def test_a_group_has_its_tokens_together_and_its_cost_apart():
    alone = forecast(case(), site(H100, price_per_gpu_hour=1.0))
    group = DeviceGroup(n_gpus=8, parallel="ddp")
    found = forecast(case(), site(H100, price_per_gpu_hour=1.0, group=group))
    assert found.step_s.estimate > alone.step_s.estimate
    assert found.tokens_per_s.estimate == pytest.approx(8 * 2048 / found.step_s.estimate)
    slower = found.step_s.estimate / alone.step_s.estimate
    ratio = found.cost_per_million_tokens.estimate / alone.cost_per_million_tokens.estimate
    assert ratio == pytest.approx(slower)


def test_where_the_link_is_unknown_the_step_of_a_group_is_not_computed():
    group = DeviceGroup(n_gpus=2, parallel="ddp")
    found = forecast(case(), site(device("rtx-4090-24"), group=group))
    assert found.time is not None
    assert found.step_s is found.tokens_per_s is found.mfu is found.communication is None
    assert [each.figure for each in found.absent] == ["communication"]


def test_a_device_without_cuda_has_memory_and_no_time():
    found = forecast(case(), site(device("mi300x-192")))
    assert found.time is found.step_s is None
    assert found.fits is True
    assert "compute capability" in found.absent[0].reason


def test_sharding_makes_a_model_fit():
    """8 billion parameters in bf16 with gradients and moments are 64 GB before any activation."""
    large = case(8, "llama-3-8b", attention="sdpa")
    assert forecast(large, site(H100)).fits is False
    group = DeviceGroup(n_gpus=8, parallel="fsdp")
    found = forecast(large, site(H100, group=group))
    assert found.fits is True
    assert found.needed_bytes < 60 * 2**30


def test_the_cases_own_limit_holds_where_it_is_lower():
    limited = msgspec.structs.replace(case(), memory_limit_bytes=2**30)
    found = forecast(limited, site(H100))
    assert found.limit_bytes == 2**30
    assert found.fits is False


def test_an_unknown_rate_is_not_computed():
    found = forecast(case(), site(device("v100-sxm2-32")))
    assert found.step_s is found.mfu is found.peak_flops_per_s is None
    assert {each.figure for each in found.absent} >= {"step time", "MFU"}
