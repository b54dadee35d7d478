"""Peakward's own norms, rotation, SwiGLU and losses with the output layer in them, in closed form against
the step itself, seen with fake tensors, which launch nothing."""

import msgspec
import pytest

from peakward.catalogue.models import model
from peakward.lab.levers.capture import capture
from peakward.prediction.operators.op_graph import op_graph
from peakward.records.case import Configuration, ModelCase, Workload

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


@pytest.mark.parametrize("setting", GRID.values(), ids=GRID.keys())
def test_it_is_what_a_step_shows(setting):
    closed = seen(op_graph(case("cuda", *setting)))
    captured = seen(capture(case("cpu", *setting)))
    assert (closed - captured, captured - closed) == (set(), set())
