"""The types of each precision, and that the global matmul setting comes back."""

import pytest
import torch

from peakward.lab.levers import precision
from peakward.levers.precision import fp32_matmuls

SETTINGS = {
    "fp32": (torch.float32, None),
    "tf32": (torch.float32, None),
    "bf16-mixed": (torch.float32, torch.bfloat16),
    "fp16-mixed": (torch.float32, torch.float16),
    "bf16": (torch.bfloat16, None),
    "fp8": (torch.float32, torch.bfloat16),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_types(setting):
    parameters, autocast = SETTINGS[setting]
    assert precision.parameter_dtype(setting) == parameters
    with precision.autocast(setting, "cpu"):
        assert torch.is_autocast_enabled("cpu") == (autocast is not None)
        if autocast is not None:
            assert torch.get_autocast_dtype("cpu") == autocast


@pytest.mark.parametrize("before", ["highest", "high", "medium"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_matmul_setting_holds_inside_alone(setting, before):
    outside = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(before)
    try:
        with fp32_matmuls(setting):
            inside = torch.get_float32_matmul_precision()
        assert inside == ("high" if setting == "tf32" else "highest")
        assert torch.get_float32_matmul_precision() == before
    finally:
        torch.set_float32_matmul_precision(outside)
