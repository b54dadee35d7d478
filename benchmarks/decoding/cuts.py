"""The cuts of each kernel that are tried, and those that were the fastest."""

import json
from pathlib import Path
from typing import Any

from decoding.launches import FORMATS, Kernel, shape_kernels
from peakward.kernels.ops.decode_step.triton.settings import (
    POSITIONS_AHEAD,
    THEN_BYTES,
    Cut,
    Split,
    cut_for,
)
from peakward.records.model_shape import ModelShape

# block, lanes, depth, warps, programs of a multiprocessor (and registers): the best of wider sweeps.
SHORTLIST = {
    0: (
        (4, 128, 3, 4, 3), (4, 128, 3, 4, 4), (8, 128, 3, 8, 2), (8, 64, 2, 4, 3), (4, 256, 2, 8, 2),
        (2, 256, 3, 8, 2),
    ),
    1: (
        (16, 32, 3, 4, 4), (8, 64, 3, 4, 4), (8, 64, 1, 4, 5), (8, 32, 3, 4, 4), (4, 256, 3, 8, 2),
        (4, 128, 3, 4, 4), (16, 32, 3, 8, 2), (32, 32, 2, 8, 1),
    ),
    2: (
        (16, 32, 1, 4, 4, 128), (8, 32, 1, 4, 4), (8, 32, 2, 4, 4), (8, 64, 1, 4, 4),
        (8, 64, 2, 4, 4, 128), (4, 128, 1, 4, 3), (4, 128, 1, 4, 4, 128), (16, 64, 1, 4, 3),
    ),
}  # fmt: skip
AHEAD = ((0, False), (1, False), (2, False), (1, True), (2, True))
"""Blocks that are brought before the wait, and whether a program goes on to bring more."""
SPLITS = [
    Split(*each)
    for each in (
        (8, 128, 4, 1),
        (8, 128, 8, 1),
        (16, 64, 4, 1),
        (8, 64, 4, 1),
        (12, 64, 4, 1),
        (4, 128, 8, 1),
    )
]
"""Cuts of attention that are swept."""
OTHER_SPLITS = {
    "bf16": [
        Split(*each) for each in ((8, 128, 4, 1), (8, 128, 8, 1), (12, 64, 4, 3), (16, 64, 4, 1))
    ],
    "int8": [
        Split(*each) for each in ((8, 128, 4, 1), (8, 128, 8, 1), (12, 64, 4, 3), (16, 64, 4, 2))
    ],
}
"""Cuts of attention that whole steps take beside the rule's, by the kind of cache."""
REFINED = 3
"""The number of a kernel's fastest cuts alone that are tried in whole steps."""


def candidates(kernel: Kernel) -> list[Cut]:
    """The cuts of a kernel to time, the rule's among them. The number of programs is not compiled in."""
    found = {rule(kernel): None}
    for block, lanes, depth, *fill in SHORTLIST[kernel.format_]:
        per_word = (2, 4, 8)[kernel.format_]
        held = kernel.k / lanes / (1 if per_word == 2 else 2)
        if held <= 96:
            for ahead, stays in AHEAD:
                cut = Cut(block, lanes, depth, ahead, *fill)._replace(stays_ahead=stays)
                if depth <= cut.chunks(kernel.k, per_word):
                    found[cut] = None
    return list(found)


def rule(kernel: Kernel) -> Cut:
    """The cut that the fused step takes by itself."""
    per_word = (2, 4, 8)[kernel.format_]
    return cut_for(n=kernel.n, k=kernel.k, per_word=per_word)


def ahead_in(split: Split, shape: ModelShape) -> Split:
    """The cut of attention with as many positions ahead as the rule brings."""
    ahead = POSITIONS_AHEAD // (shape.n_kv_heads * split.splits) // 8 * 8
    return split._replace(ahead=ahead)


def fastest(
    name: str, weights: str, best: dict[Kernel, list[Cut]], splits: list[Split]
) -> dict[str, list[Any]]:
    """The values of each field of `Cuts` that are tried in whole steps.

    They are a kernel's `REFINED` fastest cuts alone, and those that differ from the fastest only in what they
    bring ahead. There are none at all where not every kernel was swept.

    Args:
        best: the cuts of each kernel, the fastest first.
        splits: those of attention, the fastest first.
    """
    own = [*shape_kernels(name, FORMATS.index(weights)), shape_kernels(name, 0)[0]]
    rows: dict[str, list[Any]] = {}
    for each in own:
        found = best.get(each, [])
        alike = [cut for cut in found if like(cut) == like(found[0])]
        rows[each.name] = list(dict.fromkeys((*found[:REFINED], *alike)))
    rows["attention"] = splits[:REFINED]
    rows["then_bytes"] = [THEN_BYTES, 0, 8 << 20, 16 << 20]
    return rows if all(rows.values()) else {}


def like(cut: Cut) -> Cut:
    """The cut without what it brings ahead."""
    return cut._replace(ahead=0, stays_ahead=False)


def swept(path: Path) -> tuple[dict[Kernel, list[Cut]], dict[str, list[Split]]]:
    """Reads the sweeps of an earlier report.

    Returns:
        The cuts of each kernel, and those of each model's attention, the fastest first.
    """
    best: dict[Kernel, list[Cut]] = {}
    splits: dict[str, list[Split]] = {}
    for item in json.loads(path.read_text())["items"]:
        if item["phase"] == "sweep" and "rows" in item:
            if item["kernel"] == "attention":
                splits[item["model"]] = [Split(*row[1:]) for row in item["rows"]]
            else:
                best[Kernel(**item["kernel"])] = [Cut(*row[1:]) for row in item["rows"]]
    return best, splits
