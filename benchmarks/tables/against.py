"""Peakward's compositions beside transformers."""

import json
from itertools import product
from statistics import median
from typing import Any

import msgspec

from peakward.records.measurement import Interval
from stored_results import index
from tables.layout import duration, faster, table

DEVICE = "h200-141"
PARTS = ("small:4x512", "xl:4x512", "2.7B:4x512", "2.7B:8x1024")
TYPES = {
    ("bf16", False): "",
    ("fp8", False): ", ours in fp8",
    ("fp8", True): ", ours in fp8, theirs in torchao's float8",
}
"""By the precision of ours, and whether theirs is in float8."""


def transformers(pass_: str = "train_step") -> str:
    """A step of each, and the speed-up, from pairs that were timed in turns: of each part and types its
    newest."""
    outcomes = {
        (each["name"], _types(each)): each
        for found in index().of("against-transformers", device=DEVICE)
        for each in json.loads(found.read())["outcomes"]
    }
    rows = []
    for name, types in product(PARTS, TYPES):
        each = outcomes.get((f"{name}:{pass_}", types))
        if each is None:
            continue
        model, size = name.split(":")
        theirs, ours = (
            duration(median(turn["median_s"] for turn in each["turns"] if turn["arm"] == arm))
            for arm in "AB"
        )
        ratio = msgspec.convert(each["time_ratio"], Interval)
        step = f"`{model}`, {size.replace('x', ' × ')}{TYPES[types]}"
        rows.append([step, ours, theirs, faster(ratio)])
    head = ["training step", "Peakward", "transformers", "speed-up (95% interval)"]
    return table(head, rows, words=1)


WEIGHTS = {"dense": "bf16", "int8": "int8", "int4:128": "int4"}


def decode(name: str) -> str:
    """Tokens a second of a decode step of one text, ours and a peer's, from one job each; and at which share
    of a copy's rate both read."""
    stored = json.loads(index()[name].read())
    rows = []
    for job in (stored, stored["second job"]):
        ours, theirs = (
            {each["weights"]: each for each in job["items"] if each["phase"] == phase}
            for phase in ("steps", "peer")
        )
        for weights, peer in theirs.items():
            own = ours[weights]
            ours_per_s, theirs_per_s = own["per_s"]["rule"], peer["per_s"]
            rows.append(
                (
                    f"`{own['model']}`, {WEIGHTS[weights]}",
                    f"{ours_per_s:.0f}",
                    f"{theirs_per_s:.0f}",
                    f"{ours_per_s / theirs_per_s:.2f}×",
                    f"{own['share']['rule']:.0%} and {peer['share']:.0%}",
                )
            )
    head = ["weights", "Peakward", "plain torch", "speed-up", "of a copy's rate"]
    return table(head, rows, words=1)


def _types(outcome: dict[str, Any]) -> tuple[str, bool]:
    """Its key of `TYPES`."""
    precision: str = outcome["case"]["configuration"]["precision"]
    return precision, outcome["peer"].get("float8") is not None
