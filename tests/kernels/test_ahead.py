"""Every kernel compiles for sm_80 and sm_90 without a GPU, within the limits that its launch states.

The fast tier compiles two of them for sm_90 with the Triton that is installed; the full tier every launch
for both with it and with the one in the folder that PEAKWARD_OTHER_TRITON names: four minutes of a core each.
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


def assert_within_limits(names, capability, folder=None):
    found = compiled(",".join(names), capability, triton=folder)
    assert {each["launch"] for each in found["kernels"]} == set(found["launches"])
    assert not over(found)
    assert not [each["launch"] for each in found["kernels"] if each["stray_reads"]]


def test_a_kernel_stays_within_its_limits():
    """`fp8_swiglu` has the tiles and the histories of `fp8_linear`."""
    assert_within_limits(["adamw", "fp8_swiglu"], 90)


@pytest.mark.full
@pytest.mark.parametrize(
    "folder",
    [pytest.param(None, id="installed"), pytest.param(OTHER, id="other", marks=needs_other)],
)
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("part", range(PARTS))
def test_all_launches_stay_within_their_limits(part, capability, folder):
    assert_within_limits(NAMES[part::PARTS], capability, folder)
