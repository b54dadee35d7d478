"""Compiled blocks with Peakward's operators, in closed form against the kernels that Inductor writes."""

import json
import os
import subprocess
import sys
from collections import Counter
from math import prod
from pathlib import Path

import msgspec
import pytest
from torch._inductor import config

from peakward.models.presets import model
from peakward.prediction.operators.op_graph import op_graph
from peakward.records.case import Configuration, ModelCase, Workload

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.full,  # Inductor takes ten seconds a case; `test_against_inductor` reads what it wrote once.
    pytest.mark.skipif(
        not hasattr(config, "force_pointwise_cat"),
        reason="this torch joins tensors on a CPU as CPUs do",
    ),
]
ALL = {"norm": "fused", "rope": "fused", "swiglu": "fused", "attention": "flash"}
"""With these no kernel differs from a CPU's to a GPU's."""
TYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def case(precision, pass_):
    return ModelCase(
        model=msgspec.structs.replace(model("small"), n_layers=1, vocab_size=128),
        workload=Workload(batch_size=2, seq_len=256, pass_=pass_),
        configuration=Configuration(compile="default", precision=precision, **ALL),
        device="cuda",
    )


GRID = [
    case("bf16", "train_step"),
    case("bf16-mixed", "train_step"),
    case("fp32", "forward_backward"),
    case("bf16", "forward"),
    case("bf16-mixed", "forward"),
]


@pytest.fixture(scope="module")
def written():
    """By Inductor, of each of GRID."""
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("inductor.py"), *map(msgspec.json.encode, GRID)],
        env={k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [
        Counter((*names, tuple(read), tuple(wrote)) for *names, read, wrote in block)
        for block in json.loads(done.stdout.splitlines()[-1])
    ]


def elements(operands):
    return tuple(sorted(f"{prod(each.shape)} {TYPES[each.dtype]}" for each in operands))


def stated(made):
    """All of one block but its products."""
    found = Counter()
    for each in op_graph(made).operators:
        if not (each.module or "").startswith("blocks."):
            continue
        if each.name.startswith("peakward."):
            found[each.phase, each.name.removeprefix("peakward."), (), ()] += each.count
        if each.fused:
            loop = each.name.removeprefix("inductor.").split("_")[-1]
            traffic = elements(each.inputs), elements(each.outputs)
            found[each.phase, loop, *traffic] += each.count
    return found


@pytest.mark.parametrize(
    "i",
    range(len(GRID)),
    ids=lambda i: f"{GRID[i].configuration.precision} {GRID[i].workload.pass_}",
)
def test_the_same_kernels_stand_between_the_products(i, written):
    assert sum(written[i].values()) >= 6
    assert stated(GRID[i]) == written[i]
