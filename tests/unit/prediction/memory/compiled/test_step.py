"""The compiled step against the allocations of one on an H100 (torch 2.11), recorded by torch."""

import json
from pathlib import Path

import msgspec
import pytest

from peakward.models.presets import model
from peakward.prediction.memory.replay import replay
from peakward.prediction.memory.step import timeline
from peakward.records.case import Configuration, ModelCase, Workload

SNAPSHOTS = Path(__file__).parents[4] / "data" / "snapshots"


@pytest.fixture(scope="module")
def case():
    """As it was recorded: three blocks of `small`, two steps of 2 × 256."""
    return ModelCase(
        model=msgspec.structs.replace(model("small"), n_layers=3),
        workload=Workload(batch_size=2, seq_len=256),
        configuration=Configuration(precision="bf16-mixed", attention="sdpa", compile="default"),
        device="cuda",
    )


def test_it_holds_and_reserves_as_much(case):
    recorded = json.loads((SNAPSHOTS / "compiled.json").read_bytes())["stats"]
    found = replay(timeline(case).lifetimes())
    # 2.2 MiB of 907 less are predicted, and why is not known.
    allocated = recorded["allocated_bytes.all.peak"]
    assert found.split.total_bytes == pytest.approx(allocated, abs=2.5 * 2**20)
    assert found.reserved_bytes == pytest.approx(recorded["reserved_bytes.all.peak"], rel=0.03)
