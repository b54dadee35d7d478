"""Every kernel compiles for sm_80 and sm_90 without a GPU, within the limits that its launch states.

For every launch with the Triton that is installed; with the one in the folder that PEAKWARD_OTHER_TRITON
names once each, and for every launch in the full tier.
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


@pytest.mark.parametrize(
    "folder",
    [
        pytest.param(None, id="installed"),
        pytest.param(OTHER, id="other", marks=[needs_other, pytest.mark.full]),
    ],
)
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("part", range(PARTS))
def test_kernels_stay_within_their_limits(part, capability, folder):
    found = compiled(",".join(NAMES[part::PARTS]), capability, triton=folder)
    assert {each["launch"] for each in found["kernels"]} == set(found["launches"])
    assert not over(found)


@needs_other
@pytest.mark.parametrize("capability", [80, 90])
def test_the_other_triton_compiles_each_kernel(capability):
    found = compiled(",".join(NAMES), capability, triton=OTHER, once=True)
    names = [each["kernel"] for each in found["kernels"]]
    assert len(names) > len(NAMES)
    assert not over(found)
