"""Every kernel compiles for sm_80 and sm_90 without a GPU, within the limits that its launch states.

The quick launches for sm_90 with the Triton that is installed; each kernel once for sm_80, and for both
with the one in the folder that PEAKWARD_OTHER_TRITON names. Every launch for both with both in the full
tier: four minutes of a core each.
"""

import os
from pathlib import Path

import pytest

from ahead_of_time import compiled

HERE = Path(__file__).parent
OTHER = os.environ.get("PEAKWARD_OTHER_TRITON")
NAMES = sorted(each.stem for each in (HERE / "launches").glob("*.py"))
PARTS = 4
"""Processes for all of them: each takes three seconds before its first kernel."""
pytest.importorskip("triton")
needs_other = pytest.mark.skipif(not OTHER, reason="no other Triton named")


def over(found):
    """What takes more than its launch allows."""
    return {
        f"{each['launch']} {each['kernel']} {figure}": f"{each[figure]} of {limit}"
        for each in found["kernels"]
        for figure, limit in each["limits"].items()
        if each[figure] > limit
    }


@pytest.mark.parametrize("part", range(PARTS))
def test_kernels_stay_within_their_limits(part):
    found = compiled(",".join(NAMES[part::PARTS]), 90, of="quick")
    assert {each["launch"] for each in found["kernels"]} == set(found["launches"])
    assert not over(found)


@pytest.mark.parametrize(
    ("folder", "capability"),
    [
        pytest.param(None, 80, id="80"),
        pytest.param(OTHER, 90, id="other", marks=needs_other),
        pytest.param(OTHER, 80, id="other 80", marks=needs_other),
    ],
)
def test_each_kernel_compiles_elsewhere(folder, capability):
    found = compiled(",".join(NAMES), capability, triton=folder, of="once")
    names = [each["kernel"] for each in found["kernels"]]
    assert len(names) > len(NAMES)
    assert not over(found)


@pytest.mark.full
@pytest.mark.parametrize(
    "folder",
    [pytest.param(None, id="installed"), pytest.param(OTHER, id="other", marks=needs_other)],
)
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("part", range(PARTS))
def test_all_launches_stay_within_their_limits(part, capability, folder):
    found = compiled(",".join(NAMES[part::PARTS]), capability, triton=folder)
    assert {each["launch"] for each in found["kernels"]} == set(found["launches"])
    assert not over(found)
