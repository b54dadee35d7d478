"""Peakward's compositions beside transformers."""

import json
from statistics import median

import msgspec

from peakward.records.measurement import Interval
from stored_results import index
from tables.layout import duration, faster, table

DEVICE = "h200-141"
SHOWN = ("small:4x512", "xl:4x512", "2.7B:4x512", "2.7B:8x1024")


def transformers(pass_: str = "train_step") -> str:
    """A step of each, and the speed-up, from pairs that were timed in turns: of each part its newest."""
    outcomes = {
        each["name"]: each
        for found in index().of("against-transformers", device=DEVICE)
        for each in json.loads(found.read())["outcomes"]
    }
    rows = []
    for name in SHOWN:
        each = outcomes[f"{name}:{pass_}"]
        model, size = name.split(":")
        theirs, ours = (
            duration(median(turn["median_s"] for turn in each["turns"] if turn["arm"] == arm))
            for arm in "AB"
        )
        ratio = msgspec.convert(each["time_ratio"], Interval)
        rows.append([f"`{model}`, {size.replace('x', ' × ')}", ours, theirs, faster(ratio)])
    head = ["training step", "Peakward", "transformers", "speed-up (95% interval)"]
    return table(head, rows, words=1)
