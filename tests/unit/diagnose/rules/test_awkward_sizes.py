"""Rows that are no multiple of 16 bytes."""

import msgspec
import pytest

from peakward.diagnose.diagnosis_input import Symptom

from .made import PRODUCTS, SHAPE, abstains, case, given, judge, kernel, operator, profile


def sized(**sizes):
    return case(shape=msgspec.structs.replace(SHAPE, **sizes), precision="bf16")


@pytest.mark.parametrize(
    ("sizes", "n"), [({"vocab_size": 50257}, 1), ({"vocab_size": 50257, "head_dim": 65}, 2)]
)
def test_of_a_case_the_sizes(sizes, n):
    found = judge("PREC004", given(case=sized(**sizes)))
    assert isinstance(found, Symptom)
    assert sorted(each.value for each in found.evidence) == sorted(sizes.values())
    assert len(found.evidence) == n


def test_of_a_case_the_products_with_such_a_size():
    seen = profile(operators=(operator("aten::mm", "2048×768, 768×50257", 40),))
    found = judge("PREC004", given(seen, case=sized(vocab_size=50257)))
    assert sum(found.parts.values()) == pytest.approx(0.04)


def test_of_a_trace_the_kernels_that_name_it():
    slow = kernel("cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_tn_align2", 40)
    found = judge("PREC004", given(profile(PRODUCTS, slow)))
    assert sum(found.parts.values()) == pytest.approx(0.04)


def test_silent_of_good_sizes():
    assert judge("PREC004", given(case=sized())) is None
    assert judge("PREC004", given(case=case(shape=SHAPE))) is None


def test_aligned_kernels_and_those_that_do_not_say():
    good = kernel("cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8", 40)
    assert abstains("PREC004", given(profile(good)))
    fp32 = kernel("cutlass_80_simt_sgemm_128x128_8x4_nt_align1", 40)
    assert abstains("PREC004", given(profile(fp32)))
    assert abstains("PREC004", given())
