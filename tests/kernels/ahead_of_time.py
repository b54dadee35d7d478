"""Runs `ahead.py` in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def compiled(
    names: str,
    capability: int,
    *,
    triton: str | None = None,
    ptx: Path | None = None,
) -> dict[str, Any]:
    """What the kernels of `launches/NAME.py` take, of names by commas, with the Triton in that folder; their
    PTX goes to `ptx`, where named."""
    paths = [HERE.parents[1] / "src", *([triton] if triton else [])]
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [
            *(sys.executable, HERE / "ahead.py", names, str(capability)),
            *(["--ptx", ptx] if ptx else []),
        ],
        env={**environment, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def entries(ptx: Path, kernel: str) -> list[str]:
    """The PTX of each launch of a kernel, in their order."""
    _, *launches = (ptx / f"{kernel}.ptx").read_text().split(".entry")
    return launches
