"""Every kernel compiles for sm_80 and sm_90 without a GPU, within the limits that its launch states.

With the Triton that is installed, and with the one in the folder that PEAKWARD_OTHER_TRITON names.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
OTHER = os.environ.get("PEAKWARD_OTHER_TRITON")
pytest.importorskip("triton")


def taken(name, capability, folder):
    paths = [HERE.parents[1] / "src", *([folder] if folder else [])]
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, HERE / "ahead.py", name, str(capability)],
        env={**environment, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


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
@pytest.mark.parametrize("name", sorted(each.stem for each in (HERE / "launches").glob("*.py")))
def test_kernels_stay_within_their_limits(name, capability, folder):
    found = taken(name, capability, folder)
    kernels = found["kernels"]
    assert {each["launch"] for each in kernels} == set(found["launches"])
    over = {
        f"{each['launch']} {each['kernel']} {figure}": f"{each[figure]} of {limit}"
        for each in kernels
        for figure, limit in each["limits"].items()
        if each[figure] > limit
    }
    assert not over
