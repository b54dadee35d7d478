"""Peakward's compositions beside transformers."""

import json
from statistics import median

import msgspec

from peakward.records.measurement import Interval
from stored_results import index
from tables.layout import duration, faster, table

DEVICE = "h200-141"
SHOWN = (
    ("small:4x512", "bf16"),
    ("xl:4x512", "bf16"),
    ("2.7B:4x512", "bf16"),
    ("2.7B:8x1024", "bf16"),
    ("2.7B:8x1024", "fp8"),
)


def transformers(pass_: str = "train_step") -> str:
    """A step of each, and the speed-up, from pairs that were timed in turns: of each part and precision of
    ours its newest."""
    outcomes = {
        (each["name"], each["case"]["configuration"]["precision"]): each
        for found in index().of("against-transformers", device=DEVICE)
        for each in json.loads(found.read())["outcomes"]
    }
    rows = []
    for name, precision in SHOWN:
        each = outcomes[f"{name}:{pass_}", precision]
        model, size = name.split(":")
        theirs, ours = (
            duration(median(turn["median_s"] for turn in each["turns"] if turn["arm"] == arm))
            for arm in "AB"
        )
        ratio = msgspec.convert(each["time_ratio"], Interval)
        step = f"`{model}`, {size.replace('x', ' × ')}" + (
            "" if precision == "bf16" else f", ours in {precision}"
        )
        rows.append([step, ours, theirs, faster(ratio)])
    head = ["training step", "Peakward", "transformers", "speed-up (95% interval)"]
    return table(head, rows, words=1)
