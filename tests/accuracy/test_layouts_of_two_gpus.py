"""Layouts priced beside those that the engine ran on two H200s."""

from functools import cache

import msgspec
import pytest

from peakward.hardware.devices import device
from peakward.models.presets import model
from peakward.prediction.parallel.layouts import interconnect
from peakward.prediction.parallel.price import Candidate, price
from peakward.prediction.parallel.rank_costs import CostTable
from peakward.prediction.parallel.rank_memory import memory
from peakward.prediction.planning.site import site
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.layout import Layout
from peakward.records.layouts import Network
from stored_results import index

H200 = device("h200-141")
ARMS = {
    "plain": Layout(),
    "ddp": Layout(dp=2),
    "fsdp": Layout(dp=2, data="fsdp"),
    "zero2": Layout(dp=2, data="zero2"),
}


@cache
def measured():
    """Each arm's seconds of a step and peak of bytes, by what was trained: "fsdp xl"."""
    found = msgspec.json.decode(index()["2026-11-27-h200-parallel"].read())
    return {
        (item["name"], solo["arm"]): (solo["step_s"], max(filter(None, solo["peak_bytes"])))
        for item in found["items"]
        for solo in item["solos"]
    }


def planned(name, arm):
    engine, size = name.split()
    case = ModelCase(
        model=model(size),
        workload=Workload(batch_size=4, seq_len=1024),
        configuration=Configuration(
            precision="bf16" if engine == "ddp" else "bf16-mixed",
            attention="sdpa-cudnn",
            compile="default",
            optimizer="adamw-fused",
        ),
        device="cuda",
    )
    given = Candidate(ARMS[arm], 4, 0.0)
    costs = CostTable(case, site(H200).model).of(4, 1, ARMS[arm].data)
    found = price(case, given, costs, interconnect(H200, 2, Network()))
    held = memory(case, given, costs)
    return found.step_s, held.total_bytes - held.context_bytes


@pytest.mark.parametrize(
    ("name", "arm"),
    [
        ("ddp xl", "plain"),
        ("ddp xl", "ddp"),
        ("ddp 2.7B", "plain"),
        ("ddp 2.7B", "ddp"),
        ("fsdp xl", "plain"),
        ("fsdp xl", "fsdp"),
        ("fsdp xl", "zero2"),
        ("fsdp 2.7B", "plain"),
        ("fsdp 2.7B", "fsdp"),
    ],
)
def test_time_and_memory_are_those_of_the_engine(name, arm):
    step_s, peak_bytes = measured()[name, arm]
    planned_s, planned_bytes = planned(name, arm)
    assert planned_bytes == pytest.approx(peak_bytes, rel=0.015)
    assert planned_s == pytest.approx(step_s, rel=0.12)
