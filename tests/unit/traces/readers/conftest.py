"""Traces for the readers: written on the spot, recorded by Peakward, and real ones from others."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
EXACT = Path(os.environ.get("PEAKWARD_TRACES", ROOT.parent / "shared" / "traces"))


@pytest.fixture
def exact_traces() -> Path:
    """The folder of real traces with known figures."""
    if not EXACT.is_dir():
        pytest.skip(f"no real traces at {EXACT}: set PEAKWARD_TRACES to their folder")
    return EXACT


@pytest.fixture
def own_traces() -> Path:
    """Traces of Peakward's own decoder on an H200, torch 2.11."""
    return ROOT / "tests" / "data" / "traces"
