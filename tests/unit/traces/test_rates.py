"""Shares of a datasheet's roof."""

import pytest

from peakward.hardware.devices import device
from peakward.traces.rates import compute_type, roof_share
from peakward.traces.trace import Trace

from .own import COMPILED

H200 = device("h200-141")


@pytest.mark.parametrize(
    ("dtype", "kernel", "expected"),
    [
        ("c10::BFloat16", "nvjet_sm90_tst_256x128", "bf16"),
        ("float", "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_ffma", "fp32"),
        ("float", "cutlass_80_simt_sgemm_256x128_8x4_nt_align1", "fp32"),
        ("float", "cutlass_80_tensorop_s1688gemm_64x64_16x6_tn_align4", "tf32"),
        ("float", "nvjet_sss_128x64", None),
        ("double", "dgemm", None),
        (None, "gemm", None),
    ],
)
def test_the_type_is_told_by_operands_and_by_kernels_names(dtype, kernel, expected):
    assert compute_type(dtype, [kernel]) == expected


def test_the_roof_is_the_longer_of_two_times():
    # 989 TFLOP/s and 4.8 TB/s: 1 ms of compute, 0.5 ms of memory.
    work = {"flops": 989_000_000_000, "n_bytes": 2_400_000_000}
    assert roof_share(H200, "bf16", **work, time_s=2e-3) == pytest.approx(0.5)
    assert roof_share(H200, "bf16", flops=None, n_bytes=2_400_000_000, time_s=1e-3) == 0.5
    assert roof_share(H200, None, **work, time_s=2e-3) is None, "a type without a known peak"
    assert roof_share(H200, "bf16", **work, time_s=0.9e-3) is None, "beyond the roof"
    assert roof_share(H200, "bf16", flops=None, n_bytes=None, time_s=1.0) is None


def test_matmuls_of_a_real_step_lie_under_the_roof():
    rates = Trace.open(COMPILED).operators(H200)
    matmuls = [each for each in rates if each.name == "aten::mm" and each.flops > 1e11]
    assert len(matmuls) == 6
    assert all(0.3 < each.roof_share < 0.9 for each in matmuls)
    assert all(each.roof_share is None for each in Trace.open(COMPILED).operators())
