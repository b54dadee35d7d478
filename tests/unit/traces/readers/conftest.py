"""Traces for the readers: written on the spot, recorded by Peakward, and real ones from others."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
EXACT = Path(os.environ.get("PEAKWARD_TRACES", ROOT.parent / "shared" / "traces"))


@pytest.fixture(scope="session")
def exact_traces() -> Path:
    """The folder of real traces with known figures."""
    if not EXACT.is_dir():
        pytest.skip(f"no real traces at {EXACT}: set PEAKWARD_TRACES to their folder")
    return EXACT


@pytest.fixture
def own_traces() -> Path:
    """The folder of those that Peakward recorded."""
    return ROOT / "tests" / "data" / "traces"


@pytest.fixture
def write(tmp_path) -> Callable[..., Path]:
    """Writes a file of text, bytes or anything else as JSON; compressed if its name ends in .gz."""

    def written(content, name: str = "trace.json") -> Path:
        if not isinstance(content, str | bytes):
            content = json.dumps(content)
        data = content.encode() if isinstance(content, str) else content
        path = tmp_path / name
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return written
