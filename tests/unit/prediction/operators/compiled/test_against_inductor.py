"""The closed form against what Inductor makes of the decoder's own code, kernel by kernel.

`data/inductor-2.13.jsonl.gz` was recorded by compiling a block or the readout as far as to the text
of its kernels, for a GPU of 132 multiprocessors and compute capability 9.0 that was not there (torch
2.13, Triton 3.7): one JSON object a line. A tensor is its shape, its type, and how many of its
elements the kernel addresses. Of a norm's gradient that reads its own result, the kernel does not.
"""

import gzip
import json
from collections import Counter
from math import prod
from pathlib import Path

import pytest

from peakward.models.presets import model
from peakward.prediction.operators.op_graph import op_graph
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.op_graph import ITEM_BYTES

RECORDED = Path(__file__).parent / "data" / "inductor-2.13.jsonl.gz"


@pytest.fixture(scope="module")
def recorded():
    with gzip.open(RECORDED, "rt") as file:
        return [json.loads(line) for line in file]


def case(row):
    return ModelCase(
        model=model(row["model"]),
        workload=Workload(
            batch_size=row["batch"],
            seq_len=row["seq"],
            pass_="train_step" if row["train"] else "forward",
        ),
        configuration=Configuration(
            precision=row["precision"], attention=row["attention"], compile="default"
        ),
        device="cuda",
    )


def kind(name):
    """Inductor's own names begin with it; which reductions fit in registers is not stated."""
    if name.startswith("triton_"):
        return {"poi": "pointwise", "red": "reduction", "per": "reduction"}[name.split("_")[1]]
    return {"mm": "product", "bmm": "product", "sum": "sum"}.get(name.split(".")[1])


def n_bytes(tensors):
    return sum(elements * ITEM_BYTES[dtype] for _, dtype, elements in tensors)


def found(row):
    return Counter(
        (each["graph"], kind(each["name"]), n_bytes(each["reads"]), n_bytes(each["writes"]))
        for each in row["groups"]
        if kind(each["name"])
    )


def stated(row):
    kinds = {"inductor.pointwise": "pointwise", "aten.sum": "sum"}
    kinds |= {f"inductor.{each}_reduction": "reduction" for each in ("inner", "outer", "mixed")}
    kinds |= {"aten.mm": "product", "aten.bmm": "product"}
    module = "blocks.*" if row["which"] == "block" else "readout"
    counts = Counter()
    for each in op_graph(case(row)).operators:
        if (each.module or "").startswith(module) and each.name in kinds:
            n = each.count // (case(row).model.n_layers if row["which"] == "block" else 1)
            counts[each.phase, kinds[each.name], each.bytes_read, each.bytes_written] += n
    return counts


def test_every_kernel_moves_the_same_bytes(recorded):
    differing = {}
    for row in recorded:
        name = tuple(value for key, value in row.items() if key != "groups")
        if stated(row) != found(row):
            differing[name] = (stated(row) - found(row), found(row) - stated(row))
    assert differing == {}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-mixed", "fp16-mixed"])
@pytest.mark.parametrize("attention", ["naive", "sdpa"])
@pytest.mark.parametrize("train", [True, False])
def test_every_setting_was_recorded(recorded, precision, attention, train):
    wanted = {"precision": precision, "attention": attention, "train": train, "which": "block"}
    assert any(wanted.items() <= row.items() for row in recorded)


def test_every_fused_kernel_of_attention_was_recorded(recorded):
    names = {
        each["name"].split(".")[1]
        for row in recorded
        for each in row["groups"]
        if "." in each["name"]
    }
    for backend in ("cudnn", "flash", "efficient"):
        forward = f"_scaled_dot_product_{backend}_attention"
        assert {forward, f"{forward}_backward"} <= names


def test_tensors_are_not_addressed_beyond_their_size(recorded):
    for row in recorded:
        for each in row["groups"]:
            for shape, _, elements in each["reads"] + each["writes"]:
                assert elements <= prod(shape)
