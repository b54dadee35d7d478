"""Slow backends of SDPA."""

import pytest

from peakward.diagnose.diagnosis_input import Symptom

from .made import PRODUCTS, abstains, given, judge, kernel, profile

SLOW = "fmha_cutlassF_bf16_aligned_64x64_rf_sm80"


@pytest.mark.parametrize("ms", [10, 100])
def test_the_efficient_kernel_with_16_bits(ms):
    found = judge("ATTN002", given(profile(PRODUCTS, kernel(SLOW, ms, "attention"))))
    assert isinstance(found, Symptom)
    assert sum(found.parts.values()) == pytest.approx(ms * 1e-3)


@pytest.mark.parametrize(
    ("name", "ms"),
    [(SLOW, 1), ("fmha_cutlassF_f32_aligned_64x64_rf_sm80", 50), ("flash_fwd_kernel<64>", 50)],
)
def test_silent_of_little_of_fp32_and_of_flash(name, ms):
    assert judge("ATTN002", given(profile(PRODUCTS, kernel(name, ms, "attention")))) is None


def test_without_the_devices_capability():
    assert abstains("ATTN002", given(profile(), site=None))
