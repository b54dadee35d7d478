"""Whole fused steps of decode as an H200 took them, beside what is predicted of them."""

import json
from statistics import median

from peakward.models.presets import model
from peakward.prediction.time.step import step_time
from peakward.records.case import Configuration, ModelCase, Workload
from stored_results import index

from .conftest import SITES

CACHES = {"bf16": "static", "int8": "int8"}
# The factors of `levers.decode_step.KERNELS` are fitted to them.
NAMES = (
    "2026-11-29-h200-decode-speed-2",
    "2026-11-29-h200-decode-speed-caches-3",
    "2026-11-29-h200-decode-speed-batch-4",
)


def case(item, positions, kv_cache):
    return ModelCase(
        model=model(item["model"]),
        workload=Workload(batch_size=item.get("batch", 1), seq_len=positions, pass_="decode"),
        configuration=Configuration(
            precision="bf16",
            attention="flash-decode",
            cuda_graphs=True,
            weights=item["weights"],
            kv_cache=kv_cache,
            more=(("decode_step", "fused"),),
        ),
        device="cuda",
    )


def measured(names):
    """Each case and its seconds."""
    for name in names:
        for item in json.loads(index()[name].read())["items"]:
            if item["phase"] == "steps":
                yield case(item, 1024, "static"), 1 / item["per_s"]["rule"]
            elif item["phase"] == "caches":
                for label, kv_cache in CACHES.items():
                    took_us = item["us"][f"fused, {label}"]
                    yield case(item, item["positions"], kv_cache), took_us / 1e6


def test_whole_steps():
    errors = [
        abs(step_time(made, SITES["h200-141"].calibrated).step_s.estimate / took_s - 1)
        for made, took_s in measured(NAMES)
    ]
    assert len(errors) == 25
    assert median(errors) < 0.015
    assert max(errors) < 0.10
