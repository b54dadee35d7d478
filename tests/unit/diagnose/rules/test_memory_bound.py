"""Unfused work that only moves memory."""

import pytest

from peakward.diagnose.diagnosis_input import Symptom

from .made import PRODUCTS, abstains, case, given, judge, kernel, profile

SMALL = "vectorized_elementwise_kernel<CUDAFunctor_add<float>>"


@pytest.mark.parametrize("ms", [30, 300])
@pytest.mark.parametrize("category", ["elementwise", "normalisation", "copy"])
def test_its_share(ms, category):
    found = judge("BW001", given(profile(PRODUCTS, kernel(SMALL, ms, category))))
    assert isinstance(found, Symptom)
    assert sum(found.parts.values()) == pytest.approx(ms * 1e-3)
    assert "compile" in found.levers


def test_silent_where_little_fused_compiled_or_the_optimisers():
    small = profile(PRODUCTS, kernel(SMALL, 10, "elementwise"))
    fused = profile(PRODUCTS, kernel("triton_poi_0", 100, "elementwise", fused=("aten.add",)))
    update = profile(PRODUCTS, kernel(SMALL, 100, "elementwise", phase="optimizer"))
    for found in (small, fused, update):
        assert judge("BW001", given(found)) is None
    much = profile(PRODUCTS, kernel(SMALL, 100, "elementwise"))
    assert judge("BW001", given(much, case=case(compile="default"))) is None


def test_without_a_profile():
    assert abstains("BW001", given())
