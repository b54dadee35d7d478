"""Compiled blocks in fp8, against what eager ones keep and what an H200 ran and held."""

import json
from collections import Counter

import msgspec
import pytest

from peakward.hardware.devices import device
from peakward.models.presets import model
from peakward.prediction.memory.peak import unlimited
from peakward.prediction.operators import block
from peakward.prediction.operators.compiled.traced import traced_block
from peakward.prediction.operators.op_graph import op_graph
from peakward.prediction.operators.plan import plan
from peakward.prediction.operators.tape import E4M3
from peakward.prediction.operators.writer import Value, Writer
from peakward.prediction.time.device_model import device_model
from peakward.prediction.time.step import step_time
from peakward.records.case import Configuration, ModelCase, Workload
from stored_results import FOLDER

TOKENS, D, FF, HEADS = 1024, 768, 3072, 12
BLOCKS = 32


def case(shape="small", **changes):
    return ModelCase(
        model=msgspec.structs.replace(model(shape), **changes),
        workload=Workload(batch_size=2, seq_len=512),
        configuration=Configuration(precision="fp8", attention="flash", compile="default"),
        device="cuda",
    )


def kept(made):
    """Operands that the compiled block's forward graph makes and keeps for the backward one."""
    code = traced_block(plan(made)).code
    return [code.values[i].operand for i in code.saved if code.values[i].origin == "made"]


def in_fp8(operands):
    return Counter(each.shape for each in operands if each.dtype == E4M3)


def values(saved):
    if isinstance(saved, Value):
        return [saved]
    return [x for each in saved for x in values(each)] if isinstance(saved, tuple) else []


@pytest.mark.parametrize(("shape", "n_layers_in_fp8"), [("small", 4), ("gpt2", 4)])
def test_it_keeps_the_same_matrices_in_fp8_as_the_eager_block(shape, n_layers_in_fp8):
    """Those of each layer's input and weight, transposed."""
    made = case(shape)
    eager, _ = block.forward(Writer(), plan(made), Value(plan(made).hidden))
    found = in_fp8(kept(made))
    assert found == in_fp8(each.operand for each in values(eager))
    assert found.total() == 2 * n_layers_in_fp8


def test_what_a_block_keeps():
    """Each layer's input and weight in a byte an element; in two bytes gate and up, all heads as projected
    and as turned, attention's result and what is added to the stream; the rest in fp32."""
    found = sum(each.n_bytes for each in kept(case(vocab_size=64)))
    layers = [(D, 3 * D), (D, D), (D, 2 * FF), (FF, D)]
    narrow = sum(TOKENS * n_in + n_in * n_out for n_in, n_out in layers)
    halves = TOKENS * (2 * FF + 3 * D + 2 * D + D + D) * 2
    figures = TOKENS * (HEADS + 2) * 4 + 2 * len(layers) * 4
    assert found == narrow + halves + figures


def test_gradients_of_what_was_turned_are_read_and_written_once():
    """Both halves of each head of queries and keys, with cosines and sines in fp32."""
    turned = next(
        each
        for each in op_graph(case()).operators
        if each.phase == "backward" and "aten.neg" in each.fused
    )
    heads = 2 * TOKENS * D * 2
    assert turned.bytes_written == heads
    assert turned.bytes_read == heads + 2 * 512 * D // HEADS // 2 * 4


# `2.7B` on an H200: steps as one CUDA graph.


def timed():
    """The case, the time of a step and the peak of each process."""
    stored = json.loads((FOLDER / "2026-11-28-h200-against-transformers-fp8-2.json").read_bytes())
    for each in stored["outcomes"]:
        ours = each["ours_solo"]
        made = msgspec.convert(each["case"], ModelCase)
        yield made, ours["step_s"], ours["peak_allocated_bytes"]


def test_its_peak_is_what_an_h200_held():
    for made, _, peak_bytes in timed():
        told = sum(msgspec.structs.astuple(unlimited(made, None).split))
        assert told == pytest.approx(peak_bytes, rel=0.002)


def test_its_step_takes_what_an_h200_took():
    """Nothing is fitted to these; no calibration is asked for."""
    for made, measured_s, _ in timed():
        told = step_time(made, device_model(None, device("h200-141")))
        assert told.step_s.estimate == pytest.approx(measured_s, rel=0.07)
        assert told.step_s.low < measured_s < told.step_s.high
        assert "peakward.fp8_linear_delayed_both" in told.never_measured


def test_it_launches_what_an_h200_launched():
    stored = json.loads((FOLDER / "2026-11-28-h200-kernel-trials-fp8-step.json").read_bytes())
    theirs = Counter[str]()
    for name, _, n in stored["profile fp8 delayed + producers"]["top"]:
        kind = "fused" if name.startswith("triton_") else name
        theirs[kind] += n
    (made, *_), *_ = timed()
    ours = Counter[str]()
    for each in op_graph(made).operators:
        in_block = (each.module or "").startswith("blocks.")
        # Parts of sums are added up by torch there.
        if in_block and each.name != "inductor.outer_reduction":
            ours["fused" if each.fused else each.name] += each.count
    assert ours["peakward.fp8_linear_delayed_both"] == theirs["_cast_delayed"] == 10 * BLOCKS
    assert ours["peakward.fp8_swiglu"] == theirs["_fp8_swiglu_forward"]
    assert ours["peakward.fp8_swiglu_backward"] == theirs["_fp8_swiglu_backward"]
    assert ours["fused"] == theirs["fused"]
