"""Copies that only change the layout."""

import pytest

from peakward.diagnose.diagnosis_input import Symptom

from .made import PRODUCTS, abstains, given, judge, kernel, of_host, profile

STRIDED = "elementwise_kernel<direct_copy_kernel_cuda<BFloat16>>"


@pytest.mark.parametrize("ms", [10, 100])
@pytest.mark.parametrize("name", [STRIDED, "CatArrayBatchedCopy_vectorized<OpaqueType>"])
def test_strided_copies_and_concatenations(ms, name):
    found = judge("BW002", given(profile(PRODUCTS, kernel(name, ms, "copy"))))
    assert isinstance(found, Symptom)
    assert sum(found.parts.values()) == pytest.approx(ms * 1e-3)


@pytest.mark.parametrize(
    ("name", "ms"),
    [
        (STRIDED, 1),
        ("vectorized_elementwise_kernel<direct_copy_kernel_cuda<float>>", 50),
        ("unrolled_elementwise_kernel<direct_copy_kernel_cuda<float>>", 50),
    ],
)
def test_silent_of_few_of_contiguous_ones_and_of_casts(name, ms):
    assert judge("BW002", given(profile(PRODUCTS, kernel(name, ms, "copy")))) is None


def test_the_host_does_not_say_how_operands_lie():
    assert abstains("BW002", given(of_host()))
