"""The table of attention kernels beside the stored times that it was made from."""

import json
from collections import defaultdict
from statistics import median

import pytest

from peakward.prediction.time.kernels import TIMES
from stored_results import index

STEM = "2026-11-22-h100-kernel-speed-flash_attention"
ARMS = {"cudnn": "cudnn", "flash": "flash", "own": "peakward triton", "own-hopper": "peakward"}


def outcomes(name):
    return json.loads(index()[name].read())["outcomes"]


@pytest.fixture(scope="module")
def beside_cudnn():
    """Of each kernel, pass and head dimension the time of a FLOP over that of cuDNN's at 64, a length
    after the other: causal, heads of their own. Later files replace earlier ones."""
    per_flop = {}
    for outcome in (*outcomes(STEM), *outcomes(f"{STEM}-backward")):
        shape = outcome["shape"]
        queries, keys = shape["heads"].split("/")
        if shape["mask"] != "causal" or queries != keys:
            continue
        work = shape["batch"] * int(queries) * shape["seq"] ** 2 * shape["d"]
        for arm in outcome["arms"]:
            if arm.get("median_s"):
                at = shape["pass"], shape["seq"], shape["d"], arm["name"]
                per_flop[at] = arm["median_s"] / work
    found = defaultdict(list)
    for (pass_, length, head_dim, arm), each in per_flop.items():
        if (pass_, length, 64, "cudnn") in per_flop:
            base = per_flop[pass_, length, 64, "cudnn"]
            found[arm, pass_, head_dim].append(each / base)
    return found


@pytest.mark.parametrize("kernel", TIMES)
@pytest.mark.parametrize("pass_", ["forward", "backward"])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128])
def test_the_table_has_the_medians_over_the_lengths(kernel, pass_, head_dim, beside_cudnn):
    stored = beside_cudnn[ARMS[kernel], pass_, head_dim]
    assert len(stored) >= 5
    assert TIMES[kernel][pass_][head_dim] == pytest.approx(median(stored), abs=0.02)


def test_what_is_taken_for_measured_is_near_them(beside_cudnn):
    for pass_, known in TIMES["own-hopper"].items():
        for head_dim, table in known.items():
            for each in beside_cudnn[ARMS["own-hopper"], pass_, head_dim]:
                assert each / table == pytest.approx(1, abs=0.23)
