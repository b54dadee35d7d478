"""Blocks whose kernels follow from rules, against what Inductor writes for them.

`data/inductor-2.13-traced.jsonl.gz` has a line for each case: the case, and what `inductor.py` printed of it
(torch 2.13).
"""

import gzip
import json
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from peakward.hardware.devices import device
from peakward.models.presets import model
from peakward.prediction.memory.peak import unlimited
from peakward.prediction.operators.op_graph import op_graph
from peakward.prediction.time.device_model import device_model
from peakward.prediction.time.dispatch import compiled_calls
from peakward.prediction.time.step import step_time
from peakward.records.case import Configuration, ModelCase, Workload

RECORDED = Path(__file__).parent / "data" / "inductor-2.13-traced.jsonl.gz"
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "i64": 8, "i1": 1, "u8": 1}
PEAKS = [(50_304, 4_189_878_784), (50_257, 5_002_446_336)]


def recorded():
    with gzip.open(RECORDED, "rt") as file:
        rows = [json.loads(line) for line in file]
    return [(msgspec.convert(row["case"], ModelCase), row["kernels"]) for row in rows]


def name(case):
    shape, precision = case.model, case.configuration.precision
    parts = (shape.name, shape.activation, shape.positions, precision, case.workload.pass_)
    configuration = case.configuration
    parts += (configuration.attention, configuration.checkpointing, str(case.workload.seq_len))
    return " ".join(parts)


ROWS = [pytest.param(*row, id=name(row[0])) for row in recorded()]


def size(operands):
    return sum(int(n) * BYTES[dtype] for n, dtype in map(str.split, operands))


def written(kernels):
    """By phase: the number of kernels, and the bytes that they read and write."""
    found = Counter()
    for phase, loop, reads, writes in kernels:
        if loop in ("pointwise", "reduction"):
            found[phase, "kernels"] += 1
            found[phase, "read"] += size(reads)
            found[phase, "written"] += size(writes)
    return found


def stated(case):
    found = Counter()
    for each in op_graph(case).operators:
        if each.fused and (each.module or "").startswith("blocks."):
            found[each.phase, "kernels"] += each.count
            found[each.phase, "read"] += each.count * each.bytes_read
            found[each.phase, "written"] += each.count * each.bytes_written
    return found


@pytest.mark.parametrize(("case", "kernels"), ROWS)
def test_as_many_kernels_write_as_many_bytes(case, kernels):
    """Two kernels more or less at most: of scores in memory Inductor copies queries, keys and values one by
    one, and on a CPU it narrows a gradient by itself, which it did not on an H200. Of relu it keeps which
    numbers were positive, in a byte each."""
    theirs, ours = written(kernels), stated(case)
    near = 0.07 if case.model.activation == "relu" else 0.005
    for phase in ("forward", "backward"):
        assert abs(ours[phase, "kernels"] - theirs[phase, "kernels"]) <= 2
        assert ours[phase, "written"] == pytest.approx(theirs[phase, "written"], rel=near)


@pytest.mark.parametrize(
    ("case", "kernels"),
    [
        pytest.param(*row.values, id=row.id)
        for row in ROWS
        if row.values[0].model.name == "gpt2"
        and row.values[0].configuration.attention == "flash"
        and row.values[0].configuration.precision != "fp8"
        and row.values[0].workload.seq_len == 256
    ],
)
def test_they_read_as_many_bytes(case, kernels):
    """Where Inductor's kernels read whole tensors, as its text alone tells; the gradient that is narrowed by
    itself is read once more. In fp8 it writes here what a norm gives in a kernel behind that of the norm's
    figures, which an H200 does not (`test_fp8.py`)."""
    theirs, ours = written(kernels), stated(case)
    for phase in ("forward", "backward"):
        assert ours[phase, "read"] == pytest.approx(theirs[phase, "read"], rel=0.035)


# GPT-2 compiled block by block, as it ran on an H100 (`2026-11-22-h100-planted-faults`).


def gpt2(vocab_size):
    return ModelCase(
        model=msgspec.structs.replace(model("gpt2"), vocab_size=vocab_size),
        workload=Workload(batch_size=8, seq_len=1024, pass_="train_step"),
        configuration=Configuration(
            precision="bf16", attention="sdpa", compile="default", optimizer="adamw-fused"
        ),
        device="cuda",
    )


@pytest.mark.parametrize(("vocab_size", "measured_bytes"), PEAKS)
def test_the_peak_is_what_an_h100_held(vocab_size, measured_bytes):
    """Of a vocabulary of 50,257 Inductor pads the head, so that a second copy of the logits is there."""
    told = sum(msgspec.structs.astuple(unlimited(gpt2(vocab_size), None).split))
    assert told == pytest.approx(measured_bytes, rel=0.005)


def test_a_vocabulary_that_is_not_aligned_is_padded():
    def padded(vocab_size):
        operators = op_graph(gpt2(vocab_size)).operators
        return sum(each.count for each in operators if "aten.constant_pad_nd" in each.fused)

    assert padded(50_304) == 0
    assert padded(50_257) > 0


def test_a_further_parameter_costs_the_host_something():
    def calls(**changes):
        case = gpt2(50_304)
        changed = msgspec.structs.replace(
            case, model=msgspec.structs.replace(case.model, **changes)
        )
        return compiled_calls(changed, op_graph(case), "forward")

    assert calls(bias=False) < calls()


@pytest.mark.parametrize(
    ("changes", "is_derived"),
    [
        ({}, True),
        ({"norm": "rmsnorm", "positions": "rope", "activation": "silu", "gated": True}, True),
        ({"norm": "rmsnorm", "positions": "rope", "activation": "silu", "gated": True,
          "bias": False, "qkv_bias": False}, False),
    ],
)  # fmt: skip
def test_what_follows_from_rules_is_told_with_a_wider_interval(changes, is_derived):
    case = gpt2(50_304)
    changed = msgspec.structs.replace(case, model=msgspec.structs.replace(case.model, **changes))
    on = device_model(None, device("h100-sxm-80"))
    told = step_time(changed, on)
    assert bool(told.never_measured) == is_derived
    padded = msgspec.structs.replace(changed.model, vocab_size=50_257)
    assert step_time(msgspec.structs.replace(changed, model=padded), on).never_measured
