"""Products on ordinary cores."""

import pytest

from peakward.diagnose.diagnosis_input import Symptom

from .made import PRODUCTS, abstains, given, judge, kernel, profile

ON_CORES = (
    "cutlass_80_simt_sgemm_256x128_8x4_nn_align1",
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_",
    "ampere_sgemm_128x64_nn",
)
ON_TENSOR_CORES = (
    "cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4",
    "cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8",
    "nvjet_sm90_tst_128x128_64x6_1x1_h_bz_TNT",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64",
)


@pytest.mark.parametrize("name", ON_CORES)
@pytest.mark.parametrize("ms", [10, 200])
def test_kernels_that_name_them(name, ms):
    found = judge("PREC001", given(profile(PRODUCTS, kernel(name, ms))))
    assert isinstance(found, Symptom)
    assert sum(found.parts.values()) == pytest.approx(ms * 1e-3)
    assert "tf32" in found.levers


@pytest.mark.parametrize("name", ON_TENSOR_CORES)
def test_silent_of_tensor_cores(name):
    assert judge("PREC001", given(profile(kernel(name, 100)))) is None


def test_silent_of_few():
    assert judge("PREC001", given(profile(PRODUCTS, kernel(ON_CORES[0], 1)))) is None


def test_without_the_devices_rates():
    assert abstains("PREC001", given(profile(), site=None))
    assert abstains("PREC001", given())
