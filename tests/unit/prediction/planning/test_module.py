"""A captured module on a device."""

import torch
from torch import nn

from peakward.hardware.devices import device
from peakward.lab.models.module_capture import capture_module
from peakward.prediction.memory.peak import module_memory
from peakward.prediction.planning.module import module_forecast
from peakward.prediction.planning.site import site

H100 = site(device("h100-sxm-80"), price_per_gpu_hour=3.6)


def captured(width, rows=64, **settings):
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        x = torch.empty(rows, width)
    return capture_module(module, (x,), **settings)


def test_time_memory_and_cost_of_its_tokens():
    capture = captured(1024, tokens=64)
    found = module_forecast(capture, H100)
    assert found.tokens_per_s.estimate * found.step_s.estimate == 64
    assert found.memory == module_memory(capture)
    assert found.fits is True
    assert found.cost_per_million_tokens is not None
    assert {each.figure for each in found.absent} == {"floor", "MFU"}


def test_without_tokens_there_are_no_rates():
    found = module_forecast(captured(1024), H100)
    assert found.step_s is not None
    assert found.tokens_per_s is found.cost_per_million_tokens is found.energy_per_token_j is None
    assert "tokens/s" in {each.figure for each in found.absent}


def test_what_does_not_fit_is_said():
    """Two matrices of 64 GiB."""
    found = module_forecast(captured(2**17, rows=1), H100)
    assert found.fits is False
    assert found.needed_bytes > 128 * 2**30


def test_a_device_without_a_model_of_its_times_has_memory_alone():
    found = module_forecast(captured(1024), site(device("mi300x-192")))
    assert found.step_s is None
    assert found.fits is True
    assert "step time" in {each.figure for each in found.absent}
