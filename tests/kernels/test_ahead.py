"""Every kernel compiles for sm_80 and sm_90 without a GPU, within the limits that its launch states.

With the Triton that is installed, and with the one in the folder that PEAKWARD_OTHER_TRITON names.
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


@pytest.mark.parametrize(
    "folder",
    [
        pytest.param(None, id="installed"),
        pytest.param(
            OTHER, id="other", marks=pytest.mark.skipif(not OTHER, reason="no other Triton named")
        ),
    ],
)
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("part", range(PARTS))
def test_kernels_stay_within_their_limits(part, capability, folder):
    found = compiled(",".join(NAMES[part::PARTS]), capability, triton=folder)
    kernels = found["kernels"]
    assert {each["launch"] for each in kernels} == set(found["launches"])
    over = {
        f"{each['launch']} {each['kernel']} {figure}": f"{each[figure]} of {limit}"
        for each in kernels
        for figure, limit in each["limits"].items()
        if each[figure] > limit
    }
    assert not over
