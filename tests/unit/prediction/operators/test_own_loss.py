"""Peakward's own loss in closed form against the step itself, seen with fake tensors."""

import msgspec
import pytest

from peakward.lab.levers.capture import capture
from peakward.models.presets import model
from peakward.prediction.memory.peak import peak_memory
from peakward.prediction.operators.op_graph import op_graph
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.errors import PeakwardError

SHAPE = msgspec.structs.replace(model("tiny"), n_layers=1, d_model=32, d_ff=24, vocab_size=40)
GRID = {
    "fp32": ({}, {}),
    "bf16, tied": ({"precision": "bf16"}, {}),
    "mixed": ({"precision": "bf16-mixed"}, {"accumulate": 3}),
    "without an update": ({"precision": "bf16"}, {"pass_": "forward_backward"}),
    "recomputed": ({"precision": "bf16-mixed", "checkpointing": "every-block"}, {}),
}


def case(on, configuration=None, workload=None, shape=SHAPE):
    return ModelCase(
        model=shape,
        workload=Workload(**{"batch_size": 2, "seq_len": 14, **(workload or {})}),
        configuration=Configuration(**{"loss": "fused", **(configuration or {})}),
        device=on,
    )


def of_loss(graph):
    """What a CPU and a GPU do alike: all of the readout but its norm."""
    return {each for each in graph.operators if each.module in (None, "readout", "readout.head")}


@pytest.mark.parametrize("setting", GRID.values(), ids=GRID.keys())
def test_it_is_what_a_step_shows(setting):
    captured = {
        each for each in of_loss(capture(case("cpu", *setting))) if each.phase != "optimizer"
    }
    closed = {
        each for each in of_loss(op_graph(case("cuda", *setting))) if each.phase != "optimizer"
    }
    assert (closed - captured, captured - closed) == (set(), set())


def test_by_hand():
    made = case("cuda", {"precision": "bf16"})
    found = {each.name: each for each in op_graph(made).operators}
    rows, logits = 2 * 14, 2 * 14 * 40 * 2
    forward = found["peakward.cross_entropy_over_logits"]
    backward = found["peakward.cross_entropy_backward_over_logits"]
    assert (forward.bytes_read, forward.bytes_written) == (logits + 8 * rows, 12 * rows + 8)
    assert (backward.bytes_read, backward.bytes_written) == (logits + 16 * rows + 8, logits)
    assert (forward.flops, backward.flops) == (0, 0)
    assert not any(name.startswith("aten.nll_loss") for name in found)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-mixed"])
def test_the_logits_are_held_once(precision):
    wide = msgspec.structs.replace(model("tiny"), vocab_size=50_000)
    work = {"batch_size": 4, "seq_len": 512, "pass_": "forward_backward"}
    fused, torchs = (
        peak_memory(case("cuda", {"precision": precision, "loss": loss}, work, wide)).peak
        for loss in ("fused", "torch")
    )
    logits = 4 * 512 * 50_000 * (4 if precision == "fp32" else 2)
    assert fused.logits_bytes == logits
    assert torchs.logits_bytes >= 2.5 * logits


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (case("cpu"), "expected loss torch for operators in closed form, got fused"),
        (
            case("cuda", {"compile": "default"}),
            "expected loss of compiled blocks torch .*, got fused",
        ),
        (case("cuda", workload={"pass_": "forward"}), "loss fused needs the pass"),
    ],
)
def test_what_it_does_not_go_with_is_refused(made, says):
    with pytest.raises(PeakwardError, match=says):
        op_graph(made)
