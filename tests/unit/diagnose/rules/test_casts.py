"""Casts between types."""

import pytest

from peakward.diagnose.diagnosis_input import Symptom

from .made import PRODUCTS, abstains, given, judge, kernel, of_host, profile

CASTS = (
    "vectorized_elementwise_kernel<bfloat16_copy_kernel_cuda<float>>",
    "unrolled_elementwise_kernel<direct_copy_kernel_cuda<float>>",
    "vectorized_elementwise_kernel<float16_copy_kernel_cuda<float>>",
)


@pytest.mark.parametrize("name", CASTS)
@pytest.mark.parametrize("ms", [10, 100])
def test_their_share(name, ms):
    found = judge("PREC003", given(profile(PRODUCTS, kernel(name, ms, "copy"))))
    assert isinstance(found, Symptom)
    assert sum(found.parts.values()) == pytest.approx(ms * 1e-3)


def test_silent_of_few_and_of_copies():
    few = profile(PRODUCTS, kernel(CASTS[0], 1, "copy"))
    strided = profile(
        PRODUCTS, kernel("elementwise_kernel<direct_copy_kernel_cuda<float>>", 50, "copy")
    )
    for found in (few, strided):
        assert judge("PREC003", given(found)) is None


def test_the_host_does_not_say():
    assert abstains("PREC003", given(of_host()))
