"""Peakward's own norms, rotation, SwiGLU and losses with the output layer in them, in closed form against
the step itself, seen with fake tensors, which launch nothing."""

import msgspec
import pytest

from peakward.lab.levers.capture import capture
from peakward.models.presets import model
from peakward.prediction.memory.peak import peak_memory
from peakward.prediction.operators.op_graph import op_graph
from peakward.records.case import Configuration, ModelCase, Workload
from peakward.records.errors import PeakwardError
from tiers import in_full

SHAPE = msgspec.structs.replace(
    model("tiny"),
    n_layers=3,
    d_model=64,
    d_ff=24,
    n_heads=4,
    n_kv_heads=4,
    head_dim=64,
    vocab_size=40,
)
ALL = {"norm": "fused", "rope": "fused", "swiglu": "fused", "attention": "flash"}
"""With these no operator differs from a CPU's to a GPU's."""
BF16, MIXED = {"precision": "bf16"}, {"precision": "bf16-mixed"}
CHUNKED, RECOMPUTED = {"loss": "chunked"}, {"loss": "recomputed"}
NAIVE = {"attention": "naive"}
GPT2 = {"positions": "learned", "norm": "layernorm", "gated": False, "activation": "gelu-tanh"}
PLAIN = {"rope": "torch", "swiglu": "torch"}
GRID = {
    "fp32": ({}, {}, {}),
    "bf16": ({}, BF16, {}),
    "mixed": ({}, MIXED, {"accumulate": 2}),
    "without an update": ({}, BF16, {"pass_": "forward_backward"}),
    "naive": ({}, {**BF16, **NAIVE}, {}),
    "naive, mixed, grouped": ({"n_kv_heads": 2}, {**MIXED, **NAIVE}, {}),
    "grouped": ({"n_kv_heads": 1}, BF16, {}),
    "one sequence": ({}, BF16, {"batch_size": 1}),
    "layernorm": ({"norm": "layernorm"}, MIXED, {}),
    "gpt2": (GPT2, {**BF16, **PLAIN}, {}),
    "forward": ({}, BF16, {"pass_": "forward"}),
    "prefill": ({"n_kv_heads": 1}, MIXED, {"pass_": "prefill"}),
    "recomputed blocks": ({}, {**MIXED, "checkpointing": "every-block"}, {}),
    "recomputed in runs of 2 and 1": ({}, {**BF16, "checkpointing": "sqrt"}, {}),
    "selective": ({}, {**BF16, "checkpointing": "selective"}, {}),
    "experts": ({"n_experts": 4, "n_active_experts": 2}, BF16, {}),
    "chunked": ({}, {**BF16, **CHUNKED}, {}),
    "chunked, fp32": ({}, CHUNKED, {}),
    "chunked, fp16": (
        {},
        {"precision": "fp16-mixed", **CHUNKED},
        {"pass_": "forward_backward"},
    ),
    "chunked, mixed, tied": ({"tied_head": True}, {**MIXED, **CHUNKED}, {"accumulate": 3}),
    "recomputed": ({}, {**BF16, **RECOMPUTED}, {}),
    "recomputed, fp32": ({"tied_head": True}, RECOMPUTED, {}),
    "recomputed, mixed": ({}, {**MIXED, **RECOMPUTED}, {"pass_": "forward_backward"}),
}


def case(device, shape=None, configuration=None, workload=None):
    return ModelCase(
        model=msgspec.structs.replace(SHAPE, **(shape or {})),
        workload=Workload(**{"batch_size": 2, "seq_len": 14, **(workload or {})}),
        configuration=Configuration(**{**ALL, **(configuration or {})}),
        device=device,
    )


def seen(graph):
    return {each for each in graph.operators if each.phase != "optimizer"}


QUICK = (
    "naive, mixed, grouped",
    "gpt2",
    "prefill",
    "recomputed in runs of 2 and 1",
    "experts",
    "chunked, mixed, tied",
    "recomputed, fp32",
)


@pytest.mark.parametrize("name", [*QUICK, *in_full(name for name in GRID if name not in QUICK)])
def test_it_is_what_a_step_shows(name):
    setting = GRID[name]
    closed = seen(op_graph(case("cuda", *setting)))
    captured = seen(capture(case("cpu", *setting)))
    assert (closed - captured, captured - closed) == (set(), set())


def test_by_hand():
    """Of 28 tokens in bf16: a norm and a sum's, the turn of 12 heads of 64, and a gate of 24."""
    found = {(each.name, each.phase): each for each in op_graph(case("cuda", {}, BF16)).operators}
    x, weight, rows = 28 * 64 * 2, 64 * 2, 28 * 4
    moved = {
        key[0].removeprefix("peakward."): (each.bytes_read, each.bytes_written, each.count)
        for key, each in found.items()
        if key[1] == "backward"
    }
    assert moved["add_rms_norm_backward"] in (
        (3 * x + weight + rows, x + weight, 3),  # And what went past the sum.
        (2 * x + weight + rows, x + weight, 3),
    )
    packed, angles = 28 * 12 * 64 * 2, 2 * 14 * 32 * 2
    assert moved["rope"] == (packed + angles, packed, 3)
    assert moved["swiglu_backward"] == (28 * 24 * 2 * 3, 28 * 48 * 2, 3)
    turned = found["peakward.rope", "forward"]
    assert (turned.bytes_read, turned.bytes_written) == (packed + angles, packed)


def launches(configuration):
    """Operators of a block's forward and backward passes, the products' apart."""
    graph = op_graph(case("cuda", {}, {**PLAIN, "norm": "torch", **BF16, **configuration}))
    return sum(
        each.count
        for each in graph.operators
        if (each.module or "").startswith("blocks") and not each.name.endswith("mm")
    )


def test_each_spares_launches():
    """A norm's sum both ways; of RoPE ten passes each way and, with these, a copy of the heads; three
    of a gate and three of its gradient."""
    plain = launches({})
    assert plain - launches({"norm": "fused"}) == 3 * 2
    assert plain - launches({"swiglu": "fused"}) == 3 * (2 + 4 - 2)
    assert plain - launches({"rope": "fused"}) > 3 * 20


@pytest.mark.parametrize("compile_", ["none", "default"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-mixed"])
def test_a_loss_with_the_output_layer_in_it_never_holds_all_logits(precision, compile_):
    """Of 65,536 tokens and a vocabulary of 50,000: of 4,096 tokens in 16 bits, or 256 MiB, a chunk."""
    settings = {**PLAIN, "norm": "torch", "precision": precision, "compile": compile_}
    work = {"batch_size": 64, "seq_len": 1024, "pass_": "forward_backward"}
    peaks = {
        loss: peak_memory(case("cuda", {"vocab_size": 50_000}, {**settings, "loss": loss}, work))
        for loss in ("torch", "chunked", "recomputed")
    }
    logits = 65_536 * 50_000 * (4 if precision == "fp32" else 2)
    assert peaks["torch"].peak.logits_bytes >= logits
    for loss, most_bytes in (("chunked", 2 * 4096 * 50_000), ("recomputed", 256 << 20)):
        assert peaks[loss].basis == "step"
        assert peaks[loss].peak.logits_bytes <= most_bytes
        assert peaks[loss].peak_bytes < peaks["torch"].peak_bytes - 0.8 * logits


@pytest.mark.parametrize("loss", ["chunked", "recomputed"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-mixed"])
def test_a_compiled_readout_calls_the_same_operators(precision, loss):
    """Of the step, all that is the loss's own; the casts around it are Inductor's to fuse."""
    settings = {**PLAIN, "norm": "torch", "precision": precision, "loss": loss}
    eager, compiled = (
        {
            (each.name, each.phase, each.inputs, each.outputs, each.flops, each.count)
            for each in op_graph(
                case("cuda", {}, {**settings, "compile": compile_}, {"accumulate": 2})
            ).operators
            if each.name.startswith("peakward.linear")
        }
        for compile_ in ("none", "default")
    )
    assert eager == compiled
    assert len(eager) == 2


def test_a_fused_gate_keeps_its_projection_and_its_result_alone():
    work = {"batch_size": 16, "seq_len": 1024, "pass_": "forward_backward"}
    kept = [
        peak_memory(case("cuda", {"d_ff": 512}, {**BF16, "swiglu": how}, work)).peak
        for how in ("torch", "fused")
    ]
    activated = 3 * 16_384 * 512 * 2
    assert kept[0].activations_bytes - kept[1].activations_bytes == activated


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (case("cpu"), "expected (norm|rope|swiglu|attention) .* for operators in closed form, got"),
        (case("cuda", GPT2, {"swiglu": "torch"}), "rope fused needs positions of rope"),
        (case("cuda", {}, CHUNKED, {"pass_": "forward"}), "loss chunked needs the pass"),
    ],
)  # fmt: skip
def test_what_it_does_not_go_with_is_refused(made, says):
    with pytest.raises(PeakwardError, match=says):
        op_graph(made)
