"""An update of many passes."""

import msgspec
import pytest

from peakward.diagnose.diagnosis_input import Symptom
from peakward.records.case import ModuleCase

from .made import PRODUCTS, abstains, case, given, judge, kernel, profile


def updating(ms, category="elementwise"):
    return profile(
        PRODUCTS, kernel("multi_tensor_apply_kernel", ms, category, phase="optimizer", n=400)
    )


@pytest.mark.parametrize("ms", [10, 100])
def test_the_share_of_its_passes(ms):
    for of in (None, case()):
        found = judge("BW003", given(updating(ms), case=of))
        assert isinstance(found, Symptom)
        assert sum(found.parts.values()) == pytest.approx(ms * 1e-3)
        assert found.evidence[0].value == 400


def test_silent_where_little_fused_or_no_update():
    assert judge("BW003", given(updating(1))) is None
    assert judge("BW003", given(updating(100, category="optimizer"))) is None
    assert judge("BW003", given(updating(100), case=case(optimizer="adamw-fused"))) is None
    forward = case(workload={"pass_": "forward"})
    assert judge("BW003", given(updating(100), case=forward)) is None


def test_silent_on_a_module_whose_update_is_fused():
    like = case(optimizer="adamw-fused")
    fused = ModuleCase(
        source="py:model:build",
        fingerprint="0",
        workload=like.workload,
        configuration=like.configuration,
        device="cuda",
    )
    assert judge("BW003", given(updating(100), module=fused)) is None
    foreach = msgspec.structs.replace(fused, configuration=case().configuration)
    assert isinstance(judge("BW003", given(updating(100), module=foreach)), Symptom)


def test_without_a_phase_of_the_optimiser():
    assert abstains("BW003", given(profile()))
    assert abstains("BW003", given())
